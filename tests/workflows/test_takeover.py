"""A workflow run survives its process: no write is repeated or lost (P1, P2)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from banksman.bus.connection import Bus
from banksman.bus.queues.handling import Done, WorkMessage
from banksman.contracts import subjects
from banksman.contracts.calls import CallRequest
from banksman.contracts.errors import ErrorCode, Poison, Unavailable
from banksman.contracts.events import Commit, Event, RunFinished, ToolCallCompleted, ToolCallRequested
from banksman.contracts.ids import new_id
from banksman.contracts.registry import StartWorkflow
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.ports import Log
from banksman.runs.state import Conversation
from banksman.workflows import app
from banksman.workflows.builtin import BUILTIN
from banksman.workflows.worker import WorkflowWorker
from tests.support.nats import NatsServer
from tests.support.timeouts import deadline
from tests.workflows.playing import PlayedRunner, events_of, outcome, starting, store

FILES = ("demo/README.md", "demo/src/.gitkeep", "demo/tests/.gitkeep")
CALLS = (("read_file", FILES[0]), *(("write_file", path) for path in FILES))
PHASES = ("requested", "started", "stored")
APPENDS = 6
"""At least: the claim, the first call and its result, the writes, their results, and the end."""


class Crash(BaseException):
    """Ends the process."""


@dataclass
class CrashingLog:
    """A log whose process dies at its n-th append, just before or just after it is stored."""

    log: Log
    at: int
    stored: bool
    appends: int = 0
    end: BaseException = field(default_factory=Crash)

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        return self.log.cached(tenant, conversation_id)

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        return await self.log.read(tenant, conversation_id)

    async def append(
        self, state: Conversation, commit: Commit, *, folded: Conversation
    ) -> Conversation | None:
        self.appends += 1
        if self.appends != self.at:
            return await self.log.append(state, commit, folded=folded)
        if self.stored:
            await self.log.append(state, commit, folded=folded)
        raise self.end


@asynccontextmanager
async def process(
    bus: Bus, *, dies_at: int = 0, stored: bool = False, of: BaseException | None = None
) -> AsyncGenerator[WorkflowWorker]:
    """Run the worker of another process, as far as the log is concerned."""
    async with AsyncExitStack() as stack:
        worker = await app.enter_worker(stack, bus, DamagedLogs(bus), BUILTIN)
        await app.offer(bus, worker, BUILTIN)
        log = CrashingLog(worker.ports.log, dies_at, stored, end=of or Crash())
        yield replace(worker, ports=replace(worker.ports, log=log))


def delivery(start: StartWorkflow) -> WorkMessage:
    subject = subjects.workflow_run(subjects.SERVED, start.tenant, start.conversation_id)
    return WorkMessage(subject, start.model_dump_json().encode(), {}, 7, 1)


@pytest.mark.parametrize("stored", [False, True], ids=["before", "after"])
async def test_process_that_dies_at_any_append_loses_and_repeats_no_write(
    link: Bus, runner: PlayedRunner, tenant: str, stored: bool
) -> None:
    for at in range(1, APPENDS + 1):
        start = starting(tenant, {"name": "demo", "template": "empty"})
        async with process(link, dies_at=at, stored=stored) as first:
            with pytest.raises(Crash):
                await first.on_work(delivery(start))
        async with process(link) as second:
            assert await second.on_work(delivery(start)) == Done()
            assert await second.on_work(delivery(start)) == Done()

        events = await events_of(link, tenant, start.conversation_id)
        check_once(events)
        assert {path: runner.writes[start.conversation_id, path] for path in FILES} == dict.fromkeys(FILES, 1)


@pytest.mark.parametrize("stored", [False, True], ids=["refused", "stored all the same"])
async def test_broker_that_is_silent_at_any_append_loses_no_call_of_the_function(
    link: Bus, runner: PlayedRunner, tenant: str, stored: bool
) -> None:
    """P1: the function waits for the results of its calls; no other process claims its run meanwhile."""
    for at in range(2, APPENDS + 1):
        start = starting(tenant, {"name": "demo", "template": "empty"})
        async with process(link, dies_at=at, stored=stored, of=Unavailable("no answer")) as worker:
            try:
                done = await worker.on_work(delivery(start))
            except Unavailable:
                done = await worker.on_work(delivery(start))
        assert done == Done()
        events = await events_of(link, tenant, start.conversation_id)
        check_once(events)
        assert {path: runner.writes[start.conversation_id, path] for path in FILES} == dict.fromkeys(FILES, 1)


async def test_process_that_dies_between_link_and_claim_leaves_one_link(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, {"name": "demo", "template": "empty"}, in_conversation=new_id("c"))
    for stored in (False, True):
        async with process(link, dies_at=1, stored=stored) as dying:
            with pytest.raises(Crash):
                await dying.on_work(delivery(start))
    async with process(link) as last:
        await last.on_work(delivery(start))

    assert start.in_conversation is not None
    linked = await events_of(link, tenant, start.in_conversation)
    assert [event.data.type for event in linked] == ["workflow.linked"]
    assert runner.tree(start.in_conversation) == list(FILES)


async def test_workflow_run_that_kills_every_process_ends_as_crash_loop(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    start = starting(tenant, {"name": "demo", "template": "empty"})
    for _ in range(5):
        async with process(link, dies_at=2) as dying:
            with pytest.raises(Crash):
                await dying.on_work(delivery(start))
    async with process(link) as last:
        with pytest.raises(Poison, match="crash_loop"):
            await last.on_work(delivery(start))

    ended = (await events_of(link, tenant, start.conversation_id))[-1].data
    assert isinstance(ended, RunFinished)
    assert ended.error is not None
    assert (ended.status, ended.error.code) == ("failed", ErrorCode.CRASH_LOOP)


@dataclass
class Hall:
    """Holds one call of each run at another point until `go` is set."""

    points: dict[str, tuple[str, tuple[str, str]]]
    """Phase and call of each run."""
    arrived: set[str] = field(default_factory=set[str])
    full: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, phase: str, request: CallRequest) -> None:
        here = (phase, (request.call.name, str(request.call.arguments["path"])))
        if self.go.is_set() or self.points.get(request.run_id) != here:
            return
        self.arrived.add(request.run_id)
        if len(self.arrived) == len(self.points):
            self.full.set()
        await self.go.wait()


async def test_kill_9_at_every_step_is_taken_over_without_a_repeated_write(
    server: NatsServer, link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    """Twelve runs, whose process is killed at another point of another call each."""
    points = [(phase, call) for call in CALLS for phase in PHASES]
    starts = [starting(tenant, {"name": "demo", "template": "empty"}) for _ in points]
    hall = runner.meet = Hall({start.run_id: point for start, point in zip(starts, points, strict=True)})
    first = await spawn(server)
    try:
        for start in starts:
            await store(link, start)
        async with deadline("not every run reached its point"):
            await hall.full.wait()
        first.send_signal(signal.SIGKILL)
        await first.wait()
        second = await spawn(server)
    finally:
        if first.returncode is None:
            first.kill()
    try:
        hall.go.set()
        ended = [await outcome(link, start, timeout_s=60) for start in starts]
    finally:
        second.terminate()
        async with deadline("the second process did not end after SIGTERM"):
            assert await second.wait() == 0

    assert [one.status for one in ended] == ["completed"] * len(starts)
    for start in starts:
        check_once(await events_of(link, tenant, start.conversation_id))
    written = {runner.writes[start.conversation_id, path] for start in starts for path in FILES}
    assert written == {1}


def check_once(events: list[Event]) -> None:
    """Check for one outcome, one request and one result of each call, and no gap."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    requested = [event.data.call.id for event in events if isinstance(event.data, ToolCallRequested)]
    completed = [
        event.data.result.tool_call_id for event in events if isinstance(event.data, ToolCallCompleted)
    ]
    assert len(requested) == len(set(requested)) == len(CALLS)
    assert sorted(completed) == sorted(requested)
    ended = [event.data for event in events if isinstance(event.data, RunFinished)]
    assert [one.status for one in ended] == ["completed"]


async def spawn(server: NatsServer) -> asyncio.subprocess.Process:
    """Start the service as a process of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    # The servers of tests do not sync each write.
    own |= {"BANKSMAN_NATS__URL": server.url, "BANKSMAN_ALLOW_WEAK_DURABILITY": "1"}
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "banksman.cli", "workflows", env=own)
