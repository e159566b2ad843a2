"""A run gets its terminal event despite unexpected errors and a full or unavailable broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from banksman.agent.worker import RunWorker
from banksman.bus.connection import Bus
from banksman.bus.names import RUNS
from banksman.bus.queues.handling import Done, FailureCounts, Outcome, handle
from banksman.contracts.errors import Unavailable
from banksman.contracts.events import Commit, RunFinished
from banksman.contracts.work import RenameConversation
from banksman.runs.ports import Log
from banksman.runs.state import Conversation
from tests.runs.long.conftest import Agent, Agents
from tests.support.model_server import ModelServer
from tests.support.nats import NatsServer
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

DELIVERIES = 12
"""More deliveries than the number after which a message is dead-lettered."""


class Bug(Exception):
    """An unexpected error."""


@dataclass
class FaultyLog:
    """A log that fails where `fails` returns True."""

    log: Log
    fails: Callable[[Commit], bool]

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        return self.log.cached(tenant, conversation_id)

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        return await self.log.read(tenant, conversation_id)

    async def append(
        self, state: Conversation, commit: Commit, *, folded: Conversation
    ) -> Conversation | None:
        if self.fails(commit):
            raise Bug
        return await self.log.append(state, commit, folded=folded)


@dataclass
class SilentLog:
    """A log whose reads time out while it is silent."""

    log: Log
    silent: bool = False
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        return self.log.cached(tenant, conversation_id)

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        if self.silent:
            self.requested.set()
            raise Unavailable("no response")
        return await self.log.read(tenant, conversation_id)

    async def append(
        self, state: Conversation, commit: Commit, *, folded: Conversation
    ) -> Conversation | None:
        return await self.log.append(state, commit, folded=folded)


def with_faults(agent: Agent, fails: Callable[[Commit], bool]) -> RunWorker:
    ports = agent.worker.ports
    return replace(agent.worker, ports=replace(ports, log=FaultyLog(ports.log, fails)))


async def test_an_open_run_is_not_dead_lettered_when_its_driver_fails_repeatedly(
    agent: Agent, server: ModelServer
) -> None:
    """P1: renames between the claims prevent a crash loop; the run ends nevertheless."""
    server.play("once", [ScriptedReply(text="Here I am.")], at_end="repeat")
    message = agent.start("go", "openai:scripted/once")
    bus = agent.log.bus
    faulty = with_faults(agent, lambda commit: not commit.claim)
    named: dict[str, Any] = {"tenant": agent.tenant, "conversation_id": agent.conversation}
    failures, outcomes = FailureCounts(), list[Outcome]()
    for number in range(1, DELIVERIES + 1):
        delivery = replace(message, num_delivered=number)
        outcomes.append(await handle(bus, RUNS, faulty.on_work, delivery, failures))
        await agent.signal(RenameConversation(**named, title=f"{number}", request_id=f"r{number}"))
    assert Done() not in outcomes, "the message of an open run was removed, so no process could end the run"

    last = replace(message, num_delivered=99)
    assert await handle(bus, RUNS, agent.worker.on_work, last, failures) == Done()
    (outcome,) = await agent.events(RunFinished)
    assert outcome.content == "Here I am."


async def test_a_silent_broker_during_a_model_request_ends_no_run(agent: Agent, server: ModelServer) -> None:
    """P1: the reply is retained even if the log cannot be read after a change."""
    server.play("slow", [ScriptedReply(text="Here I am.", gate=Gate(name="slow"))])
    message = agent.start("go", "openai:scripted/slow")
    ports = agent.worker.ports
    log = SilentLog(ports.log)
    driving = asyncio.create_task(replace(agent.worker, ports=replace(ports, log=log)).on_work(message))
    await server.wait_for_requests("slow", outcome="open", timeout_s=WAIT_TIMEOUT_S)
    log.silent = True
    await ports.work.wake_owner(agent.tenant, agent.conversation)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await log.requested.wait()
    log.silent = False
    server.open_gate("slow")

    assert await driving == Done()
    (outcome,) = await agent.events(RunFinished)
    assert (outcome.status, outcome.content) == ("completed", "Here I am.")
    assert len(server.requests("slow")) == 1


async def test_a_reply_written_during_a_broker_outage_is_published_later_in_full(
    own_nats: NatsServer, own_bus: Bus, agents: Agents, server: ModelServer
) -> None:
    """P1: the deltas exceed the connection's buffer for an unavailable server; their loss is harmless."""
    text = "word " * 20_000
    server.play("long", [ScriptedReply(text=text, gate=Gate(name="long", after_events=3))])
    async with agents(own_bus) as agent:
        driving = asyncio.create_task(agent.worker.on_work(agent.start("go", "openai:scripted/long")))
        await server.wait_for_requests("long", outcome="open", timeout_s=WAIT_TIMEOUT_S)
        own_nats.kill()
        server.open_gate("long")
        await server.wait_for_requests("long", outcome="completed", timeout_s=WAIT_TIMEOUT_S)
        own_nats.start()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await driving == Done()
        (outcome,) = await agent.events(RunFinished)
        assert (outcome.status, outcome.content) == ("completed", text)
