"""A run whose model is overloaded waits, also through a crash of its agent, and fails after the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.queues.handling import WorkMessage
from banksman.contracts import subjects
from banksman.contracts.events import IterationStarted
from banksman.contracts.live_output import ModelWaiting
from tests.runs.long.conftest import Agent, Agents
from tests.support.model_server import ModelServer
from tests.support.scripted_models import HttpError, ScriptedReply

OVERLOADED = HttpError(status=529, message="Overloaded.")


@asynccontextmanager
async def notices(bus: Bus, agent: Agent) -> AsyncGenerator[asyncio.Queue[ModelWaiting]]:
    """Yield the notices that clients of the conversation receive."""
    seen: asyncio.Queue[ModelWaiting] = asyncio.Queue()

    async def received(message: Message) -> None:
        seen.put_nowait(ModelWaiting.model_validate_json(message.data))

    subscription = await bus.subscribe(subjects.delta(agent.tenant, agent.conversation), received)
    await bus.ready()
    yield seen
    await subscription.unsubscribe()


async def crash_while_it_waits(agent: Agent, message: WorkMessage, seen: asyncio.Queue[ModelWaiting]) -> None:
    """Drive a run until it has waited three times, and stop without a commit."""
    driving = asyncio.create_task(agent.worker.on_work(message))
    for _ in range(3):
        await seen.get()
    driving.cancel()
    await asyncio.wait({driving})


async def test_clients_learn_why_a_run_waits_and_when_it_continues(
    agents: Agents, bus: Bus, server: ModelServer
) -> None:
    busy = OVERLOADED.model_copy(update={"times": 2})
    model = server.play("busy", [ScriptedReply(text="Here I am.", fault=busy)])
    async with agents(max_wait_s=30) as agent, notices(bus, agent) as seen:
        finished = await agent.run("hello", f"openai:{model}")
        first = await seen.get()

    assert (finished.status, finished.content) == ("completed", "Here I am.")
    assert (first.pause.reason, first.pause.attempt, first.pause.model) == (
        "overloaded",
        1,
        f"openai:{model}",
    )
    assert "Overloaded." in first.pause.error
    assert first.pause.next_attempt_s <= 0.1


async def test_run_continues_to_wait_after_its_agent_crashed(
    agents: Agents, bus: Bus, server: ModelServer
) -> None:
    busy = OVERLOADED.model_copy(update={"times": 8})
    model = server.play("busy", [ScriptedReply(text="Here I am.", fault=busy)])
    async with agents(max_wait_s=30) as first, notices(bus, first) as seen:
        message = first.start("hello", f"openai:{model}")
        await crash_while_it_waits(first, message, seen)
        async with agents(max_wait_s=30) as second:
            finished = await second.drive(replace(message, num_delivered=2))

    assert (finished.status, finished.content) == ("completed", "Here I am.")
    assert len(server.requests("busy")) == 9


async def test_wait_before_a_crash_counts_towards_the_limit(
    agents: Agents, bus: Bus, server: ModelServer
) -> None:
    """The second agent may wait for as long as the first one did, so it gives up at once."""
    model = server.play("busy", [ScriptedReply(text="x", fault=OVERLOADED)])
    async with agents(max_wait_s=30) as first, notices(bus, first) as seen:
        message = first.start("hello", f"openai:{model}")
        await crash_while_it_waits(first, message, seen)
        [asked] = [one.ts for one in await first.history() if isinstance(one.data, IterationStarted)]
        waited_s = (first.worker.ports.clock.now() - asked).total_seconds()
        before = len(server.requests("busy"))
        async with agents(max_wait_s=waited_s) as second:
            finished = await second.drive(replace(message, num_delivered=2))

    assert finished.status == "failed"
    assert finished.error is not None and "529" in finished.error.message
    assert len(server.requests("busy")) == before + 1
