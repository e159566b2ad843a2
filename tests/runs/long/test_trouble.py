"""A run keeps its end whatever goes wrong round it: unexpected errors, a full or absent broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from banksman.agent.worker import Worker
from banksman.bus.connection import Bus
from banksman.bus.names import RUNS
from banksman.bus.outcomes import Done, Outcome, handle
from banksman.contracts.errors import Unavailable
from banksman.contracts.events import Commit, RunFinished
from banksman.contracts.work import RenameConversation
from banksman.model_server import Gate, ModelServer, Reply
from banksman.runs.ports import Log
from banksman.runs.state import Conversation
from tests.runs.long.conftest import Agent, Agents
from tests.support.nats import NatsServer
from tests.support.patience import PATIENCE_S

DELIVERIES = 12
"""More than after which a message that cannot be handled is buried."""


class Bug(Exception):
    """Something that nobody thought of."""


@dataclass
class FaultyLog:
    """A log that fails where `fails` says so."""

    log: Log
    fails: Callable[[Commit], bool]

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        return await self.log.read(tenant, conversation_id)

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        if self.fails(commit):
            raise Bug
        return await self.log.append(state, commit)


@dataclass
class SilentLog:
    """A log that cannot be read while it is silent."""

    log: Log
    silent: bool = False
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        if self.silent:
            self.asked.set()
            raise Unavailable("no answer")
        return await self.log.read(tenant, conversation_id)

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        return await self.log.append(state, commit)


def with_faults(agent: Agent, fails: Callable[[Commit], bool]) -> Worker:
    ports = agent.worker.ports
    return replace(agent.worker, ports=replace(ports, log=FaultyLog(ports.log, fails)))


async def test_a_run_whose_driver_fails_again_and_again_is_not_buried_while_it_is_open(
    agent: Agent, server: ModelServer
) -> None:
    """P1: renamings between the claims keep them from counting as a crash loop; an end comes all the same."""
    server.play("once", [Reply(text="Here I am.")], at_end="repeat")
    message = agent.start("go", "openai:scripted/once")
    bus = agent.log.bus
    faulty = with_faults(agent, lambda commit: not commit.claim)
    named: dict[str, Any] = {"tenant": agent.tenant, "conversation_id": agent.conversation}
    outcomes: list[Outcome] = []
    for number in range(1, DELIVERIES + 1):
        outcomes.append(await handle(bus, RUNS, faulty.on_work, replace(message, num_delivered=number)))
        await agent.signal(RenameConversation(**named, title=f"{number}", request_id=f"r{number}"))
    assert Done() not in outcomes, "its message is gone, and nobody would ever end it"

    assert await handle(bus, RUNS, agent.worker.on_work, replace(message, num_delivered=99)) == Done()
    (outcome,) = await agent.events(RunFinished)
    assert outcome.content == "Here I am."


async def test_a_broker_that_does_not_answer_while_a_model_writes_ends_no_run(
    agent: Agent, server: ModelServer
) -> None:
    """P1: the reply is kept, though the log could not be read when there was news of the run."""
    server.play("slow", [Reply(text="Here I am.", gate=Gate(name="slow"))])
    message = agent.start("go", "openai:scripted/slow")
    ports = agent.worker.ports
    log = SilentLog(ports.log)
    driving = asyncio.create_task(replace(agent.worker, ports=replace(ports, log=log)).on_work(message))
    await server.wait_for_requests("slow", outcome="open", timeout_s=PATIENCE_S)
    log.silent = True
    await ports.work.nudge(agent.tenant, agent.conversation)
    async with asyncio.timeout(PATIENCE_S):
        await log.asked.wait()
    log.silent = False
    server.open_gate("slow")

    assert await driving == Done()
    (outcome,) = await agent.events(RunFinished)
    assert (outcome.status, outcome.content) == ("completed", "Here I am.")
    assert len(server.requests("slow")) == 1


async def test_what_is_written_while_the_broker_is_away_is_told_later_and_whole(
    own_nats: NatsServer, own_bus: Bus, agents: Agents, server: ModelServer
) -> None:
    """P1: more pieces of text than a connection keeps for a server that is away; none of them matters."""
    text = "word " * 20_000
    server.play("long", [Reply(text=text, gate=Gate(name="long", after_events=3))])
    async with agents(own_bus) as agent:
        driving = asyncio.create_task(agent.worker.on_work(agent.start("go", "openai:scripted/long")))
        await server.wait_for_requests("long", outcome="open", timeout_s=PATIENCE_S)
        own_nats.kill()
        server.open_gate("long")
        await server.wait_for_requests("long", outcome="completed", timeout_s=PATIENCE_S)
        own_nats.start()
        async with asyncio.timeout(PATIENCE_S):
            assert await driving == Done()
        (outcome,) = await agent.events(RunFinished)
        assert (outcome.status, outcome.content) == ("completed", text)
