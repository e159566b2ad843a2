"""The part of the services in APP that manages workspaces: placements, and reports of runners."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from faststream.nats import NatsRouter
from tests.support.fixtures import SecuredNats
from tests.support.polling import eventually, scripted_delay
from tests.tool_runner.service.processes import RunnerProcess, Runners

from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.agent.router import store_router
from banksman.agent.runners.presence import RunnerPresence
from banksman.agent.runners.stores import RunnerStores, WorkspaceReports
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import CONCURRENCY, ControlPlane, Received
from banksman.bus.names import AGENTS, OWNERS, WORKSPACES
from banksman.bus.secrets import CallTickets, SecretBox, TenantSecrets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import ObjectInfo, Objects, owned_name
from banksman.bus.storage.slots import CallSlots, StoredSlot, watch_slots
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallReply, CallRequest
from banksman.contracts.ids import attempt_id, new_id
from banksman.contracts.runner_requests import FileList, FileRead, FileReply, FileWrite
from banksman.contracts.subjects import ANY
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.workspaces import WorkspaceOwner, WorkspaceReport, WorkspaceReportReply
from banksman.deployment.users import AGENT, OPERATOR_FILES, TOOL_RUNNER
from banksman.runs.call_attempt import REPEAT_S
from banksman.runs.ports import Placement
from banksman.runs.runners.placement import Placements

WAIT_S = 60.0
"""Time limit in seconds for short operations on a busy machine."""
POLL_S = 0.05

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], within_s: float = WAIT_S) -> T:
    """Poll until the result is true: other processes send no notification."""
    return await eventually(look, within_s, interval_s=POLL_S)


@dataclass
class Platform:
    """One agent with the permissions of a deployment, reduced to workspaces."""

    bus: Bus
    placements: Placements
    store: Objects
    """Snapshots, read with the operator's connection."""
    runner_stores: RunnerStores
    """The agent's access to the snapshots of runners."""
    tenant: str = field(default_factory=lambda: new_id("t"))
    _finished: defaultdict[str, asyncio.Future[ToolResult]] = field(
        default_factory=lambda: defaultdict(asyncio.get_running_loop().create_future)
    )

    @property
    def slots(self) -> CallSlots:
        return CallSlots(self.bus)

    def on_fact(self, fact: StoredSlot) -> None:
        stored = fact.decode()
        if isinstance(stored, CallFinished):
            self._finished[stored.attempt].set_result(stored.result)

    async def record(self, conversation: str) -> WorkspaceOwner:
        entry = await Bucket(self.bus, OWNERS, WorkspaceOwner).get(f"{self.tenant}.{conversation}")
        assert entry is not None, f"{conversation} was never placed"
        return entry.value

    async def recorded(
        self, conversation: str, condition: Callable[[WorkspaceOwner], bool], within_s: float = WAIT_S
    ) -> WorkspaceOwner:
        """Wait until the record of a workspace satisfies a condition."""

        async def read() -> WorkspaceOwner | None:
            record = await self.record(conversation)
            return record if condition(record) else None

        return await until(read, within_s)

    async def clean(self, conversation: str) -> WorkspaceOwner:
        """Wait until the last snapshot of a workspace contains all changes."""
        return await self.recorded(conversation, lambda record: not record.dirty)

    async def place(self, conversation: str) -> Placement | None:
        return await self.placements.place(self.tenant, conversation, None)

    async def placed(self, conversation: str, *, within_s: float = WAIT_S) -> Placement:
        """Place a workspace as soon as possible."""
        return await until(lambda: self.place(conversation), within_s)

    def request(
        self, placement: Placement, conversation: str, tool: str, *, idempotent: bool, **arguments: Any
    ) -> CallRequest:
        """Build a call as the owner of a run sends it."""
        call = ToolCall(id=new_id("k"), name=tool, arguments=arguments, idempotent=idempotent)
        return CallRequest(
            tenant=self.tenant,
            conversation_id=conversation,
            run_id=f"{conversation}-r",
            attempt=attempt_id(call.id, 1),
            call=call,
            digest=call.digest,
            runner_epoch=placement.runner_epoch,
            deadline=datetime.now(UTC) + timedelta(seconds=120),
            left_s=120,
            place=placement.place,
        )

    async def send(self, placement: Placement, request: CallRequest) -> CallReply | None:
        return await self.placements.call(placement, request)

    async def begin(self, conversation: str, tool: str, **arguments: Any) -> tuple[Placement, CallRequest]:
        """Place a call and send it until a runner accepts it."""
        idempotent = tool == "read_file"
        placement = await self.placed(conversation)
        request = self.request(placement, conversation, tool, idempotent=idempotent, **arguments)
        return await self._accepted(placement, request)

    async def _accepted(self, placement: Placement, request: CallRequest) -> tuple[Placement, CallRequest]:
        conversation = request.conversation_id
        async with asyncio.timeout(WAIT_S):
            while True:
                reply = await self.send(placement, request)
                if reply is not None and reply.answer == "accepted":
                    return placement, request
                await scripted_delay(POLL_S)
                placement = await self.placed(conversation)
                again = {"runner_epoch": placement.runner_epoch, "place": placement.place}
                request = request.model_copy(update=again)

    async def result(self, request: CallRequest) -> ToolResult:
        async with asyncio.timeout(WAIT_S):
            return await asyncio.shield(self._finished[request.attempt])

    async def call(self, conversation: str, tool: str, **arguments: Any) -> tuple[Placement, ToolResult]:
        """Execute a call; repeat the request periodically, as the owner of a run does."""
        placement, request = await self.begin(conversation, tool, **arguments)
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_S):
                        return placement, await asyncio.shield(self._finished[request.attempt])
                placement, request = await self._repeated(placement, request)

    async def _repeated(self, placement: Placement, request: CallRequest) -> tuple[Placement, CallRequest]:
        reply = await self.send(placement, request)
        if reply is not None and reply.answer in ("accepted", "done"):
            return placement, request
        return await self._accepted(placement, request)

    async def bash(self, conversation: str, command: str) -> str:
        """Run a command; return its standard output."""
        _, result = await self.call(conversation, "bash", command=command)
        assert not result.is_error, result.content
        return str(result.content["stdout"])

    async def write(self, conversation: str, path: str, data: bytes) -> FileReply:
        """Upload one small file."""
        encoded = base64.b64encode(data).decode()
        request = FileWrite(path=path, upload=new_id("u"), offset=0, data_base64=encoded, last=True)
        return await self.placements.files(self.tenant, conversation, request)

    async def read(self, conversation: str, path: str) -> FileReply:
        return await self.placements.files(self.tenant, conversation, FileRead(path=path))

    async def paths(self, conversation: str) -> list[str]:
        reply = await self.placements.files(self.tenant, conversation, FileList())
        assert reply.error is None
        return [entry.path for entry in reply.items]

    async def stored(self, conversation: str) -> list[ObjectInfo]:
        """Return the objects of a workspace's snapshots, sorted by name."""
        prefix = f"{self.tenant}/{conversation}/"
        return sorted([info async for info in self.store.list(prefix)], key=lambda info: info.name)

    async def snapshot_name(self, conversation: str) -> str:
        """Return the name of the recorded snapshot's manifest."""
        snapshot = (await self.record(conversation)).snapshot
        assert snapshot is not None
        return owned_name(snapshot.stored_by, self.tenant, conversation, snapshot.id)

    async def sees(self, *runners: RunnerProcess) -> None:
        """Wait until exactly these runners have a lease in this process's view."""
        wanted = {(runner.id, runner.epoch) for runner in runners}

        async def seen() -> bool:
            return {(one.runner, one.runner_epoch) for one in self.placements.leases()} == wanted

        await until(seen)


@asynccontextmanager
async def platform(
    secured: SecuredNats, *, wait_s: float = 60.0, replies_to_snapshots: bool = True
) -> AsyncIterator[Platform]:
    """Run the platform on a server. Without `replies_to_snapshots`, it ignores reports of snapshots."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(await secured.connect(AGENT))
        files = await stack.enter_async_context(await secured.connect(OPERATOR_FILES))
        tickets = await CallTickets.load(bus)
        stores = RunnerStores(bus, lambda: placements.leases())
        placements = await stack.enter_async_context(
            Placements(
                bus,
                BrokerClock(bus),
                wait_s=wait_s,
                tickets=tickets,
                remove_objects=stores.remove_snapshots,
            )
        )
        # Ends the lease of a killed runner long before it expires, as every agent does.
        await stack.enter_async_context(RunnerPresence(bus, placements))
        await stack.enter_async_context(Relay(bus, tickets, TenantRedaction(bus, b"")))
        made = Platform(bus, placements, Objects(files, WORKSPACES), stores)
        await stack.enter_async_context(report_handlers(bus, snapshots=replies_to_snapshots))
        await stack.enter_async_context(ControlPlane(bus, store_router(stores)))
        await watch_slots(bus, made.on_fact, tenant=made.tenant)
        await bus.ready()
        yield made


def report_handlers(bus: Bus, *, snapshots: bool) -> ControlPlane:
    """Reply to workspace reports as agents do; reply to reports with a snapshot only if `snapshots`."""
    reports, router = WorkspaceReports(bus, TenantSecrets(bus, SecretBox(b""))), NatsRouter()

    @router.subscriber(subjects.workspace_report(ANY, ANY, ANY), queue=AGENTS, max_workers=CONCURRENCY)
    async def on_report(report: WorkspaceReport, message: Received) -> WorkspaceReportReply | None:
        return (
            await reports.on_report(report, message.subject) if snapshots or report.snapshot is None else None
        )

    return ControlPlane(bus, router)


def home(runners: tuple[RunnerProcess, ...], runner_id: str) -> RunnerProcess:
    """Return the process of a runner by its id."""
    return next(runner for runner in runners if runner.id == runner_id)


def started(runners: Runners, count: int, **settings: str) -> tuple[RunnerProcess, ...]:
    """Start several runners that snapshot changed workspaces immediately."""
    chosen = {"BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S": "0.05", **settings}
    made = tuple(runners.make(user=TOOL_RUNNER, root=None, **chosen) for _ in range(count))
    for runner in made:
        runner.begin()
    for runner in made:
        runner.wait_ready()
    return made
