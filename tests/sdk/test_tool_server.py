"""Calls to a tool server, sent like the owner of a run sends them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.agent.router import registry_router
from banksman.agent.tools import AvailableTools, ToolRegistry
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.errors import TimedOut
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS, kv_subject
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import IDLE_RENEW_EVERY_S
from banksman.bus.storage.slots import CallSlots, StoredSlot, watch_slots
from banksman.contracts import subjects
from banksman.contracts.assistants import ToolSettings
from banksman.contracts.calls import PRESENCE, CallFinished, CallReply, CallRequest, CancelCall, RunnerLease
from banksman.contracts.ids import attempt_id, new_id
from banksman.contracts.subjects import ANY
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.ports import Placement
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.sdk import Toolbox, ToolContext, ToolFailed, ToolServer
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline


@dataclass
class Agent:
    """The registry and the calls of one agent."""

    bus: Bus
    placements: Placements
    catalog: AvailableTools
    relay: Relay
    tenant: str
    results: dict[str, ToolResult] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def offers(self, tenant: str | None = None) -> set[str]:
        tools = self.catalog.offered(tenant or self.tenant, ToolSettings(enabled=True))
        return {tool.name for tool in tools}

    def received(self, fact: StoredSlot) -> None:
        stored = fact.decode()
        if isinstance(stored, CallFinished):
            self.results[stored.attempt] = stored.result
            self.arrived.set()

    def request(self, server: str, tool: str, /, at: Placement, **arguments: Any) -> CallRequest:
        found = self.catalog.offered(self.tenant, ToolSettings(enabled=True))
        definition = next((one for one in found if one.name == tool), None)
        call = ToolCall(
            id=new_id("k"),
            name=tool,
            arguments=arguments,
            server=server,
            timeout_s=5,
            secrets=() if definition is None else definition.secrets,
        )
        return CallRequest(
            tenant=self.tenant,
            conversation_id="c1",
            run_id="c1-r1",
            attempt=attempt_id(call.id, 1),
            call=call,
            digest=call.digest,
            runner_epoch=at.runner_epoch,
            deadline=datetime.now(UTC) + timedelta(seconds=30),
            left_s=30,
        )

    async def place(self, server: str) -> Placement:
        placement = await self.placements.place(self.tenant, "c1", server)
        assert placement is not None
        return placement

    async def result(self, request: CallRequest) -> ToolResult:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while request.attempt not in self.results:
                self.arrived.clear()
                await self.arrived.wait()
        return self.results[request.attempt]

    async def call(self, server: str, tool: str, **arguments: Any) -> ToolResult:
        placement = await self.place(server)
        request = self.request(server, tool, placement, **arguments)
        assert await self.placements.call(placement, request) == CallReply(answer="accepted")
        return await self.result(request)


@asynccontextmanager
async def agent_on(bus: Bus, tenant: str, signing_key: bytes = b"") -> AsyncGenerator[Agent]:
    async with AsyncExitStack() as stack:
        clock = await stack.enter_async_context(BrokerClock(bus))
        tickets = await CallTickets.load(bus)
        placements = await stack.enter_async_context(
            Placements(bus, clock, tickets=tickets, signing_key=signing_key)
        )
        catalog = await stack.enter_async_context(AvailableTools(bus, placements, enabled=True, away_s=0.0))
        schemas = await stack.enter_async_context(SchemaChecker())
        registry = await stack.enter_async_context(
            ToolRegistry(bus, clock, catalog.registered, placements, schemas, away_s=0.0)
        )
        control = ControlPlane(bus, registry_router(registry))
        await stack.enter_async_context(control)
        redaction = await stack.enter_async_context(TenantRedaction(bus, signing_key))
        relay = await stack.enter_async_context(Relay(bus, tickets, redaction))
        agent = Agent(bus, placements, catalog, relay, tenant)
        subscription = await watch_slots(bus, agent.received)
        stack.push_async_callback(subscription.unsubscribe)
        yield agent


@pytest.fixture
async def agent(bus: Bus, tenant: str) -> AsyncGenerator[Agent]:
    async with agent_on(bus, tenant) as one:
        yield one


@pytest.fixture
def box() -> Toolbox:
    return Toolbox()


@pytest.fixture
def name() -> str:
    """A unique id for a server and its tool."""
    return new_id("s")


def server(nats_server: NatsServer, name: str, box: Toolbox, **options: Any) -> ToolServer:
    return ToolServer(name, box, nats=NatsSettings(url=nats_server.url, connect_timeout_s=5), **options)


class Forecast(BaseModel):
    text: str
    at: datetime


VALUES: list[tuple[Any, dict[str, Any]]] = [
    (None, {"success": True, "result": None}),
    ("hello", {"success": True, "result": "hello"}),
    ([1, 2], {"success": True, "result": [1, 2]}),
    ({"found": 3}, {"success": True, "found": 3}),
    (
        Forecast(text="x", at=datetime(2026, 1, 1, tzinfo=UTC)),
        {"success": True, "text": "x", "at": "2026-01-01T00:00:00Z"},
    ),
]


@pytest.mark.parametrize(("value", "content"), VALUES, ids=["none", "text", "list", "object", "model"])
async def test_return_value_becomes_a_json_object(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox, value: Any, content: dict[str, Any]
) -> None:
    """R45: objects unchanged, other values under `result`."""

    @box.tool(name=name, description="x")
    async def give() -> Any:
        return value

    async with server(nats_server, name, box):
        result = await agent.call(name, name)

    assert (result.content, result.is_error, result.runner) == (content, False, name)


async def test_result_with_success_false_is_an_error_with_its_content(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    """R104: the tool's text reaches the model unchanged."""

    @box.tool(name=name, description="x")
    def give() -> dict[str, Any]:
        return {"success": False, "reason": "closed on Sundays"}

    async with server(nats_server, name, box):
        result = await agent.call(name, name)

    assert result.content == {"success": False, "reason": "closed on Sundays"}
    assert (result.is_error, result.error_kind) == (True, "tool_error")


async def test_long_result_is_cut_with_a_note(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    @box.tool(name=name, description="x")
    def give() -> str:
        return "x" * 300_000

    async with server(nats_server, name, box):
        result = await agent.call(name, name)

    assert result.truncated and len(str(result.content["result"])) == 10_000
    assert "300002 characters" in str(result.content["note"])


@pytest.mark.parametrize(
    ("how", "message"),
    [("fail", "No such city."), ("exit", "tried to end the process"), ("stop", "StopIteration")],
)
async def test_server_continues_after_every_end_of_a_function(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox, how: str, message: str
) -> None:
    """R46: a failure, an exit, an exception that no future accepts."""

    @box.tool(name=name, description="x")
    def end(how: str) -> str:
        if how == "fail":
            raise ToolFailed("No such city.")
        if how == "exit":
            sys.exit(3)
        if how == "stop":
            next(iter(()))
        return "fine"

    async with server(nats_server, name, box):
        failed, fine = await agent.call(name, name, how=how), await agent.call(name, name, how="well")

    assert message in str(failed.content["error"])
    assert fine.content["result"] == "fine"


@pytest.mark.parametrize("kind", [ToolFailed, ConnectionError])
async def test_error_of_a_function_contains_no_key_of_a_failed_request(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox, kind: type[Exception]
) -> None:
    @box.tool(name=name, description="x")
    def forecast() -> str:
        raise kind("404 for url 'https://user:hunter2@weather.test/now?city=Oslo&api_key=canary0123456789'")

    async with server(nats_server, name, box):
        failed = await agent.call(name, name)

    shown = str(failed.content["error"])
    assert "canary" not in shown and "hunter2" not in shown
    assert "weather.test/now?city=Oslo" in shown


async def test_function_receives_the_context_of_its_call(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    @box.tool(name=name, description="x")
    def whose(context: ToolContext, greeting: str) -> str:
        return f"{greeting} {context.tenant} {context.conversation_id}"

    async with server(nats_server, name, box):
        result = await agent.call(name, name, greeting="hello")

    assert result.content["result"] == f"hello {agent.tenant} c1"


async def test_call_is_admitted_once_and_only_with_the_approved_digest(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    """P5: a repeated request does not run it again; other arguments, tools or epochs are refused."""
    gate, runs = asyncio.Event(), 0

    @box.tool(name=name, description="x")
    async def once(word: str) -> str:
        nonlocal runs
        runs += 1
        await gate.wait()
        return word

    async with server(nats_server, name, box, capacity=1):
        placement = await agent.place(name)
        request = agent.request(name, name, placement, word="a")
        other = agent.request(name, name, placement, word="b")
        replies = [
            await agent.placements.call(placement, one)
            for one in (
                request,
                request,
                other,
                other.model_copy(update={"digest": request.digest}),
                agent.request(name, "unknown", placement),
            )
        ]
        gate.set()
        await agent.result(request)
        again = await agent.placements.call(placement, request)
        to_another = other.model_copy(update={"runner_epoch": 1}).model_dump_json().encode()
        with pytest.raises(TimedOut):
            await agent.bus.request(subjects.tool_call(name, agent.tenant, "c1"), to_another, 0.2)

    kinds = [reply and reply.answer for reply in replies]
    assert kinds == ["accepted", "accepted", "busy", "refused", "refused"]
    assert (again and again.answer, runs) == ("done", 1)


async def test_stopping_server_finishes_its_calls_and_is_no_longer_offered(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @box.tool(name=name, description="x")
    async def work() -> str:
        began.set()
        await gate.wait()
        return "done"

    async with server(nats_server, name, box) as one, asyncio.timeout(WAIT_TIMEOUT_S):
        assert name in agent.offers()
        calling = asyncio.create_task(agent.call(name, name))
        await began.wait()
        one.stop()
        await until_lease(agent, name, lambda leases: not any(lease.serving for lease in leases))
        assert name not in agent.offers()
        gate.set()
        assert (await calling).content["result"] == "done"
    assert await agent.placements.place(agent.tenant, "c1", name) is None


async def test_server_that_lost_its_lease_serves_again(
    agent: Agent, bus: Bus, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    """Its calls have ended, because owners may have declared them lost."""
    began, ended = asyncio.Event(), asyncio.Event()

    @box.tool(name=name, description="x")
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with server(nats_server, name, box), asyncio.timeout(WAIT_TIMEOUT_S):
        first = await agent.place(name)
        request = agent.request(name, name, first)
        await agent.placements.call(first, request)
        await began.wait()
        await Bucket(bus, RUNNERS, RunnerLease).delete(f"{name}.{first.runner_epoch}")
        await ended.wait()
        await until_lease(agent, name, lambda leases: any(one.epoch != first.runner_epoch for one in leases))

        assert not await agent.placements.alive(first)
        facts = await CallSlots(bus).read(agent.tenant, request.attempt)
    assert facts.started is not None and facts.finished is None


async def test_lasting_call_renews_the_lease_of_an_idle_server(
    agent: Agent, bus: Bus, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    gate, stored = asyncio.Event(), asyncio.Queue[float]()

    @box.tool(name=name, description="x")
    async def work() -> None:
        await gate.wait()

    async def put(message: Message) -> None:
        stored.put_nowait(asyncio.get_running_loop().time())

    async def renewed_soon() -> bool:
        gate.clear()
        async with deadline("the lease was not renewed"):
            before = await stored.get()
            calling = asyncio.create_task(agent.call(name, name))
            after = await stored.get()
        gate.set()
        await calling
        return after - before < IDLE_RENEW_EVERY_S - 0.2

    async with server(nats_server, name, box):
        await bus.subscribe(subjects.stored(kv_subject(RUNNERS, f"{name}.{ANY}")), put)
        await bus.ready()
        # On a busy machine a single renewal may be late; without the tested behaviour every renewal is late.
        await eventually(renewed_soon)


async def test_server_replies_to_the_check_of_its_connection_and_to_no_unknown_cancel(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    """Without a reply, each agent would check again and again. Another process may have an unknown call."""

    @box.tool(name=name)
    def first() -> None:
        """Do nothing."""

    async def cancelled(attempt: str) -> bytes:
        subject = subjects.tool_cancel(name, agent.tenant, attempt)
        return await agent.bus.request(subject, CancelCall(attempt=attempt).model_dump_json().encode(), 0.5)

    async with server(nats_server, name, box):
        assert CallReply.model_validate_json(await cancelled(PRESENCE)).answer == "done"
        with pytest.raises(TimedOut):
            await cancelled(new_id("k"))


async def test_only_a_later_process_replies_in_place_of_one_that_may_have_ended(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    """P2: only one reply reaches an agent, so a living process must always be the first."""

    @box.tool(name=name)
    def work() -> None:
        """Do nothing."""

    async def replying(epoch: int, renewed_at: int) -> int | None:
        check = CancelCall(attempt=PRESENCE, runner_epoch=epoch, renewed_at=renewed_at)
        subject = subjects.tool_cancel(name, agent.tenant, PRESENCE)
        reply = await agent.bus.request(subject, check.model_dump_json().encode(), 0.5)
        return CallReply.model_validate_json(reply).runner_epoch

    async def leases() -> dict[int, int]:
        found = Bucket(agent.bus, RUNNERS, RunnerLease)
        entries = [entry async for entry in found.entries() if entry.key.startswith(name)]
        return {entry.value.runner_epoch: entry.revision for entry in entries}

    async with server(nats_server, name, box), deadline("no lease of both processes"):
        await until_lease(agent, name, lambda found: len(found) == 1)
        ((first, renewed_at),) = (await leases()).items()
        async with server(nats_server, name, box):
            await until_lease(agent, name, lambda found: len(found) == 2)
            ((later, _),) = ((epoch, at) for epoch, at in (await leases()).items() if epoch != first)
            for _ in range(8):
                assert await replying(first, renewed_at) == first
            assert await replying(later, 2**31) == later
            former = 1
            assert await replying(former, renewed_at) == later
            with pytest.raises(TimedOut):
                await replying(former, 2**31)


@dataclass
class _Lease:
    epoch: int
    serving: bool


async def until_lease(agent: Agent, name: str, holds: Any) -> None:
    """Wait until the agent sees these leases of a server. The caller sets the deadline."""

    def as_wanted() -> bool:
        found = agent.placements.instances(name, None)
        return bool(holds([_Lease(one.placement.runner_epoch, one.serving) for one in found]))

    await eventually(as_wanted)


async def test_name_of_a_withdrawn_tool_is_free_for_others(
    agent: Agent, nats_server: NatsServer, name: str, box: Toolbox
) -> None:
    other, keeps = Toolbox(), new_id("t")

    @box.tool(name=name, description="first")
    def first() -> None: ...

    @box.tool(name=keeps, description="stays")
    def stays() -> None: ...

    @other.tool(name=name, description="second")
    def second() -> None: ...

    async with server(nats_server, name, box) as one:
        await one.withdraw(name)
        async with server(nats_server, new_id("s"), other):
            listed = {tool.definition.name: tool.definition.description for tool in await one.list()}

    assert (listed[name], listed[keeps]) == ("second", "stays")


async def test_server_that_is_cancelled_while_it_registers_leaves_no_connection(
    nats_server: NatsServer, bus: Bus, name: str, box: Toolbox
) -> None:
    @box.tool(description="Repeat a word.")
    def echo(word: str) -> str:
        return word

    requested = asyncio.Event()

    async def leave_without_reply(_message: object) -> None:
        requested.set()

    async def connected() -> bool:
        async with httpx.AsyncClient(base_url=nats_server.monitoring_url, verify=False) as http:
            connections = (await http.get("/connz", params={"limit": 1024})).json()["connections"]
        return any(one.get("name") == f"tool server {name}" for one in connections)

    async def disconnected() -> bool:
        return not await connected()

    registry = await bus.subscribe(subjects.registry("tool", "register"), leave_without_reply)
    serving = asyncio.create_task(server(nats_server, name, box).serve())
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await requested.wait()
    assert await connected()
    serving.cancel()
    await asyncio.wait({serving})
    await registry.unsubscribe()
    await eventually(disconnected)
    assert serving.cancelled()
