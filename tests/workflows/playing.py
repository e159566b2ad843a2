"""A runner with files in memory, and the requests of a user of workflows over NATS."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallRequest, CallStarted, CancelCall, RunnerLease
from banksman.contracts.events import Event, RunFinished
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.subjects import ANY, SERVED
from banksman.contracts.tools import PathChange, ToolResult, failed
from banksman.log_integrity.damage import DamagedLogs
from banksman.quotas.places import Shares
from banksman.runs.runners.calls import RunnerCalls
from banksman.sdk.workflows import Workflow
from banksman.workflows import app
from banksman.workflows.settings import WorkflowSettings
from tests.support.polling import eventually, scripted_delay
from tests.support.timeouts import WAIT_TIMEOUT_S

Phase = str
"""`requested` when a call is admitted, `started` when its start is stored, `stored` when its result is."""

Meet = Callable[[Phase, CallRequest], Awaitable[None]]


async def _pass(_phase: Phase, _request: CallRequest) -> None:
    return


RENEW_INTERVAL_S = 1.0


@dataclass
class RunnerSlots:
    """The slots, as a runner process writes them."""

    slots: CallSlots

    async def start(self, tenant: str, started: CallStarted) -> bool:
        return (await self.slots.store_started(tenant, started)).fresh

    async def finish(self, tenant: str, finished: CallFinished) -> bool:
        return not (await self.slots.store_result(tenant, finished, runner_epoch=1)).taken


@dataclass
class PlayedRunner:
    """Serves `read_file` and `write_file`, and counts the writes."""

    bus: Bus
    meet: Meet = _pass
    runner: str = field(default_factory=lambda: new_id("r"))
    files: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """(workspace, path) to content."""
    writes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    refuses: set[str] = field(default_factory=set[str])
    """Paths whose writes fail."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    together: int = 0
    """The most calls that were in progress at a time."""

    def __post_init__(self) -> None:
        self.calls = RunnerCalls(
            self.runner,
            1,
            RunnerSlots(CallSlots(self.bus, may_read=False)),
            Shares(1000),
            _now,
            may_start=lambda: True,
            may_repeat=lambda request: request.call.idempotent,
        )
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[PlayedRunner]:
        lease = RunnerLease(runner=self.runner, runner_epoch=1)
        await Bucket(self.bus, RUNNERS, RunnerLease).put(self.runner, lease)
        calls = await self.bus.subscribe(subjects.tool_call(self.runner, ANY, ANY), self._called)
        cancels = await self.bus.subscribe(subjects.tool_cancel(self.runner, ANY, ANY), self._cancel)
        renewing = asyncio.create_task(self._renew(lease))
        try:
            yield self
        finally:
            tasks = [renewing, *self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await calls.unsubscribe()
            await cancels.unsubscribe()
            await Bucket(self.bus, RUNNERS, RunnerLease).delete(self.runner)

    async def _renew(self, lease: RunnerLease) -> None:
        while True:
            await scripted_delay(RENEW_INTERVAL_S)
            await Bucket(self.bus, RUNNERS, RunnerLease).put(self.runner, lease)

    async def _called(self, message: Message) -> None:
        request = CallRequest.model_validate_json(message.data)
        reply, perform = self.calls.admit(request)
        await self.bus.publish(message.reply, reply.model_dump_json().encode())
        if perform:
            self.together = max(self.together, len(self.calls.active))
            task = asyncio.create_task(self._perform(request))
            self._running[request.attempt] = task
            task.add_done_callback(lambda _: self._running.pop(request.attempt))

    async def _perform(self, request: CallRequest) -> None:
        await self.meet("requested", request)
        await self.calls.perform(request, self._execute)
        await self.meet("stored", request)

    async def _execute(self, request: CallRequest) -> ToolResult:
        stop = self._ended[request.attempt] = asyncio.Event()
        meeting = asyncio.ensure_future(self.meet("started", request))  # noqa: TID251
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([meeting, stopped], return_when=asyncio.FIRST_COMPLETED)
        meeting.cancel()
        stopped.cancel()
        if stop.is_set():
            return failed(request.call.id, "cancelled", "The call was cancelled.")
        return self._do(request)

    def _do(self, request: CallRequest) -> ToolResult:
        call, path = request.call, str(request.call.arguments["path"])
        place = (request.workspace_id, path)
        if call.name == "read_file":
            if place not in self.files:
                return failed(call.id, "tool_error", "no such file")
            return self._result(request, {"success": True, "content": self.files[place]})
        if path in self.refuses:
            return failed(call.id, "tool_error", "the disk is full")
        self.writes[place] += 1
        self.files[place] = str(call.arguments["content"])
        change = PathChange(path=path, change="created")
        return self._result(request, {"success": True, "path": path}, (change,))

    def _result(
        self, request: CallRequest, content: dict[str, Any], changed: tuple[PathChange, ...] = ()
    ) -> ToolResult:
        return ToolResult(tool_call_id=request.call.id, content=content, runner=self.runner, changed=changed)

    async def _cancel(self, message: Message) -> None:
        stop = self._ended.get(CancelCall.model_validate_json(message.data).attempt)
        if stop is not None:
            stop.set()
            self.cancelled.set()

    def tree(self, workspace: str) -> list[str]:
        return sorted(path for where, path in self.files if where == workspace)


@dataclass
class Meeting:
    """Holds the first call that matches until `go` is set."""

    at: Callable[[Phase, CallRequest], bool]
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    request: CallRequest | None = None

    async def __call__(self, phase: Phase, request: CallRequest) -> None:
        if not self.go.is_set() and self.at(phase, request):
            self.request = request
            self.arrived.set()
            await self.go.wait()


def _now() -> datetime:
    return datetime.now(UTC)


def starting(tenant: str, parameters: dict[str, Any], **more: Any) -> StartWorkflow:
    conversation_id = new_id("c")
    values = {
        "tenant": tenant,
        "workflow": "create_project",
        "conversation_id": conversation_id,
        "run_id": run_id_for(conversation_id),
        "message_id": new_id("m"),
        "parameters": parameters,
        "user": "ada",
        "tools": {"rules": [{"action": "auto"}]},
    }
    return StartWorkflow.model_validate(values | more)


async def store(bus: Bus, start: StartWorkflow, *, msg_id: str | None = None) -> int:
    """Store a start as a gateway does; return its stream sequence."""
    subject = subjects.workflow_run(SERVED, start.tenant, start.conversation_id)
    msg_id = msg_id or f"workflow:{start.run_id}"
    return (await durable(bus, subject, start.model_dump_json().encode(), msg_id=msg_id)).stream_seq


async def events_of(bus: Bus, tenant: str, conversation_id: str) -> list[Event]:
    stored = await EventLog(bus).read(tenant, conversation_id, leader=True)
    return [event for one in stored for event in one.commit.events]


async def outcome(bus: Bus, start: StartWorkflow, *, timeout_s: float = WAIT_TIMEOUT_S) -> RunFinished:
    """Wait for the terminal event of a run, and return it."""
    async with (
        asyncio.timeout(timeout_s),
        LiveHub(EventLog(bus)) as hub,
        hub.tail(start.tenant, start.conversation_id) as commits,
    ):
        async for stored in commits:
            for event in stored.commit.events:
                if isinstance(event.data, RunFinished) and event.run_id == start.run_id:
                    return event.data
    raise AssertionError("the log ended")


async def until(holds: Callable[[], Awaitable[bool]], *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait until a condition holds."""
    await eventually(holds, timeout_s)


async def letters(bus: Bus, subject: str) -> list[tuple[str, bytes]]:
    """Return reason and payload of the dead letters from a subject."""
    return [
        (dead.letter.reason, base64.b64decode(dead.letter.payload_base64))
        async for dead in dead_letters(bus)
        if dead.letter.subject == subject
    ]


@asynccontextmanager
async def serving(bus: Bus, *workflows: Workflow, **settings: Any) -> AsyncGenerator[None]:
    """Serve workflows as the service serves its built-in ones."""
    stop, given = asyncio.Event(), WorkflowSettings(drain_s=0.0, **settings)
    async with AsyncExitStack() as stack:
        worker = await app.enter_worker(stack, bus, DamagedLogs(bus), workflows)
        await app.offer(bus, worker, workflows)
        loop = asyncio.create_task(app.serve(bus, worker, given, Shares(given.slots), stop))
        try:
            yield
        finally:
            stop.set()
            await loop
