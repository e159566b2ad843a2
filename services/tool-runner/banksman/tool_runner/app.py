"""Composition of the tool-runner service."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never, cast

from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control import ControlPlane
from banksman.bus.objects import Objects
from banksman.bus.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import (
    DRAINING,
    CallReply,
    CallRequest,
    CancelCall,
    FileReply,
    FileRequest,
    RunnerLease,
)
from banksman.contracts.errors import BanksmanError
from banksman.contracts.subjects import ANY
from banksman.deployment.durability import Durability
from banksman.deployment.users import TOOL_RUNNER, tool_runner
from banksman.runs.lease import Lease
from banksman.runs.records import CallRecords, LateResults
from banksman.runs.runner import CallDesk
from banksman.runtime import service
from banksman.runtime.health import health_server
from banksman.runtime.service import Life
from banksman.tool_runner.egress.hosts import HostRules
from banksman.tool_runner.egress.private_servers import EgressWithPrivate
from banksman.tool_runner.execution import Execution
from banksman.tool_runner.identity import SandboxIdentity, sandbox_identity
from banksman.tool_runner.sandbox.base import SandboxBackend
from banksman.tool_runner.sandbox.bwrap import BwrapSandbox
from banksman.tool_runner.sandbox.cgroups import CallCgroups, NotDelegated, delegated
from banksman.tool_runner.sandbox.leftovers import end_leftovers
from banksman.tool_runner.selftest import self_test
from banksman.tool_runner.settings import ToolRunnerServiceSettings, ToolRunnerSettings
from banksman.tool_runner.tools.toolbox import ToolBox, workspace_tools
from banksman.tool_runner.worker import Worker
from banksman.tool_runner.workspaces.files_api import FilesApi
from banksman.tool_runner.workspaces.registry import WorkspaceRegistry
from banksman.tool_runner.workspaces.reports import Reports
from banksman.tool_runner.workspaces.runner_identity import RunnerIdentity, claim
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.snapshots import Snapshots
from banksman.tool_runner.workspaces.turns import Turns
from banksman.tool_runner.workspaces.uploads import Uploads
from banksman.tool_runner.workspaces.workspace import WorkspaceStore, default_root

logger = logging.getLogger(__name__)

THREADS = 32
"""For files and look-ups of names, which may hang; what the interpreter takes by default is a handful."""
EXIT_WITHIN_S = 5
"""Seconds that an end without a lease may take. Then the kernel ends the process, and that its sandboxes."""

SWEEP_S = 5.0
"""Seconds that a start may spend on what interrupted writes have left."""


def run() -> int:
    """Run the service until it is told to stop; returns the exit code."""
    return service.run("tool-runner", ToolRunnerServiceSettings, main)


async def main(settings: ToolRunnerServiceSettings, life: Life) -> None:
    """Serve until `life.stop`.

    Raises:
        Conflict: another process serves these workspaces.
        LeaseLost: the lease was not renewed in time; a supervisor starts the process again.
        Unavailable: NATS cannot be reached.
        Forbidden: the key is another runner's.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    try:
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            await _serve(settings, life, tasks, stack)
    except BaseExceptionGroup as group:
        raise _first(group) from None


@dataclass(frozen=True, slots=True)
class _Premises:
    """What a runner has before it meets the bus."""

    user: SandboxIdentity
    workspaces: WorkspaceStore
    uploads: Uploads
    identity: RunnerIdentity
    sandbox: SandboxBackend | None
    """None when it does not hold; `problem` says why."""
    problem: str | None
    box: ToolBox | None

    def may_repeat(self, tool: str) -> bool:
        """Whether a call of a tool changes nothing."""
        return self.box is not None and self.box.may_repeat(tool)


async def _serve(
    settings: ToolRunnerServiceSettings, life: Life, tasks: asyncio.TaskGroup, stack: AsyncExitStack
) -> None:
    own = settings.tool_runner
    await stack.enter_async_context(health_server(life.health, own))
    premises = await _premises(settings.data_dir, own)
    if premises.sandbox is not None:
        stack.callback(premises.sandbox.close)
        sweep = tasks.create_task(premises.sandbox.sweep(), name="sweep")
        stack.callback(sweep.cancel)
    bus = await stack.enter_async_context(await _connect(settings, premises.identity))
    # The key of another runner is refused here, by name, instead of by silence at the first request.
    await bus.ready(settings.nats.connect_timeout_s)
    life.health.checks["nats"] = bus.problem
    if not settings.allow_weak_durability:
        durability = Durability.of_run(bus)
        life.health.checks["streams"] = durability.problem
        if not await durability.holds(life.stop):
            return
    clock = await stack.enter_async_context(BrokerClock(bus, stream=names.object_stream(names.WORKSPACES)))
    keeper = _keeper(bus, clock, own, premises)
    worker = _worker(bus, clock, own, premises, keeper.holdings, tasks)
    files = FilesApi(
        premises.workspaces,
        premises.uploads,
        keeper.holdings,
        keeper,
        holds=lambda: worker.lease.holds,
    )
    await stack.enter_async_context(control_plane(bus, premises.identity.runner, worker, files))
    await worker.lease.take()
    keeping = tasks.create_task(keeper.run(), name="workspaces")
    renewing = tasks.create_task(_keep(worker, keeping), name="lease")
    _tell_health(life, worker)
    life.ready()
    await life.stop.wait()
    worker.lease.withdraw(DRAINING)
    await worker.drain(own.drain_s)
    await _ended(keeping)
    await keeper.copy_all()
    await _ended(renewing)
    await worker.lease.release()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _premises(data_dir: Path, own: ToolRunnerSettings) -> _Premises:
    user = sandbox_identity(own.sandbox_uid)
    workspaces = WorkspaceStore(
        own.workspaces_dir or default_root(data_dir, user), user, own.limits.workspace
    )
    workspaces.prepare()
    identity = claim(workspaces.root, runner=own.runner)
    await asyncio.to_thread(_tidy, workspaces)
    uploads = Uploads(workspaces.root / ".uploads", max_bytes=own.limits.sandbox.file_size_bytes)
    uploads.prepare()
    sandbox, problem = await _tested_sandbox(workspaces.root, user, own)
    box = None
    if sandbox is not None:
        # Reading the machine's certificates takes a third of a second on a busy one.
        ssl_context = await asyncio.to_thread(ssl.create_default_context)
        egress = EgressWithPrivate(
            own.limits.fetch,
            hosts=HostRules(own.egress.allow_hosts, own.egress.deny_hosts),
            private=own.egress.allow_private_addresses,
            ssl_context=ssl_context,
        )
        box = workspace_tools(
            sandbox,
            egress,
            own.limits,
            commands_may_connect=own.egress.allow_commands and own.sandbox == "bwrap",
        )
    return _Premises(user, workspaces, uploads, identity, sandbox, problem, box)


def _tidy(workspaces: WorkspaceStore) -> None:
    """Take away what a runner that was killed left: first the processes, then the files that they wrote."""
    if ended := end_leftovers(workspaces.root):
        logger.warning("%d sandboxes of an earlier runner were still running and were killed", ended)
    if skipped := workspaces.sweep(SWEEP_S):
        logger.warning("%d workspaces were not searched for interrupted writes within %g s", skipped, SWEEP_S)


async def _tested_sandbox(
    root: Path, user: SandboxIdentity, own: ToolRunnerSettings
) -> tuple[SandboxBackend | None, str | None]:
    """The sandbox, or why there is none."""
    made: list[SandboxBackend] = []

    def make() -> SandboxBackend:
        made.append(_sandbox(root, user, own))
        return made[0]

    report = await self_test(root, user, make)
    if report.ok:
        return made[0], None
    for sandbox in made:
        sandbox.close()
    return None, report.summary()


def _sandbox(root: Path, user: SandboxIdentity, own: ToolRunnerSettings) -> SandboxBackend:
    """The chosen backend. There is no fall-back to another one.

    Raises:
        SandboxUnavailable: when it cannot work here.
    """
    limits, max_output_chars = own.limits.sandbox, own.limits.max_output_chars
    match own.sandbox:
        case "bwrap":
            cgroups = _call_cgroups(root)
            return BwrapSandbox(user, limits, max_output_chars=max_output_chars, cgroups=cgroups)
        case "docker":
            # Imported where it is used: with the library it takes longer than all the rest.
            from banksman.tool_runner.sandbox.docker import DockerSandbox

            return DockerSandbox(root, user, limits, own.docker, max_output_chars=max_output_chars)
        case _:
            assert_never(own.sandbox)


def _call_cgroups(root: Path) -> CallCgroups | None:
    try:
        cgroups = delegated(root)
    except NotDelegated as reason:
        logger.info("commands are limited by rlimits and watchdogs: %s", reason)
        return None
    logger.info("each command has a cgroup with %s", ", ".join(sorted(cgroups.controllers)))
    return cgroups


async def _connect(settings: ToolRunnerServiceSettings, identity: RunnerIdentity) -> Bus:
    user = tool_runner(settings.tool_runner.runner)
    name = f"{TOOL_RUNNER} {identity.runner}"
    return await Bus.connect(settings.nats, name=name, inbox_prefix=user.inbox_prefix)


def _keeper(bus: Bus, clock: BrokerClock, own: ToolRunnerSettings, premises: _Premises) -> SnapshotScheduler:
    """Who looks after the workspaces; knows what earlier processes of this runner have left."""
    scratch = premises.workspaces.root / ".copies"
    snapshots = Snapshots(
        Objects(bus, names.WORKSPACES), scratch, premises.user, own.limits.workspace, clock.now
    )
    snapshots.prepare()
    reports = Reports(bus, premises.identity.runner)
    holdings = WorkspaceRegistry(
        premises.workspaces, snapshots, reports, runner_epoch=premises.identity.epoch
    )
    holdings.load()
    return SnapshotScheduler(holdings, snapshots, reports, own.copies)


def _worker(
    bus: Bus,
    clock: BrokerClock,
    own: ToolRunnerSettings,
    premises: _Premises,
    holdings: WorkspaceRegistry,
    tasks: asyncio.TaskGroup,
) -> Worker:
    identity = premises.identity
    lease = Lease(
        bus,
        RunnerLease(runner=identity.runner, runner_epoch=identity.epoch),
        load=lambda: len(desk.active),
        problem=premises.problem,
    )
    desk = CallDesk(
        runner=identity.runner,
        runner_epoch=identity.epoch,
        slots=CallRecords(
            CallSlots(bus, may_read=False), runner_epoch=identity.epoch, holds=lambda: lease.holds
        ),
        capacity=own.queue_capacity,
        now=clock.now,
        may_start=lambda: lease.holds and not worker.draining,
        may_repeat=lambda request: premises.may_repeat(request.call.name),
        fits=lambda request: holdings.admits(request.tenant, request.workspace_id, request.place),
        note=LateResults(bus).keep,
    )
    outputs = Objects(bus, names.OUTPUTS)
    execution = premises.box and Execution(
        bus, identity.runner, premises.box, premises.workspaces, outputs, clock.now
    )
    commands = own.limits.sandbox.max_concurrent_calls
    turns = Turns(commands=commands, fetches=own.concurrent_fetches)
    worker = Worker(desk, lease, turns, holdings, execution, premises.problem, tasks)
    return worker


def control_plane(bus: Bus, runner: str, worker: Worker, files: FilesApi) -> ControlPlane:
    """What a runner serves; also the source of the subject reference."""
    control = ControlPlane(bus, title="Banksman tool-runner", description="Calls and files of one runner.")
    control.serve(
        subjects.tool_call(runner, ANY, ANY),
        worker.on_call,
        request=CallRequest,
        reply=CallReply,
        title="tool.call",
        description="Run a call, once. The answer says whether it was taken; its result comes as an event.",
    )
    control.serve(
        subjects.tool_cancel(runner, ANY, ANY),
        worker.on_cancel,
        request=CancelCall,
        reply=CallReply,
        title="tool.cancel",
        description="End a call and store its result.",
    )
    control.serve(
        subjects.files(runner, ANY, ANY),
        files.respond,
        request=FileRequest,
        reply=FileReply,
        title="file",
        description="List, read, write and delete files of a workspace.",
    )
    return control


async def _keep(worker: Worker, keeping: asyncio.Task[None]) -> None:
    try:
        await worker.lease.keep()
    except BanksmanError:
        signal.alarm(EXIT_WITHIN_S)
        # The workspaces may be another's by now.
        keeping.cancel()
        await worker.fence()
        raise


def _tell_health(life: Life, worker: Worker) -> None:
    async def sandbox() -> str | None:
        return worker.problem

    async def lease() -> str | None:
        return None if worker.lease.holds else "the lease is not renewed"

    life.health.checks |= {"sandbox": sandbox, "lease": lease}


def _first(error: BaseException) -> BaseException:
    """What a task group was ended by: a caller expects it by its own type."""
    if isinstance(error, BaseExceptionGroup):
        return _first(cast(BaseExceptionGroup[BaseException], error).exceptions[0])
    return error
