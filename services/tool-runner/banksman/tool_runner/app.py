"""Composition of the tool-runner service."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib.metadata import version

from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.direct_acks import direct_acks
from banksman.bus.first_connection import keep_connecting
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.subjects import ANY
from banksman.deployment.streams import Durability
from banksman.deployment.users import TOOL_RUNNER, tool_runner
from banksman.quotas.places import Shares
from banksman.runs.runners.calls import LateResults, LeasedSlots, RunnerCalls
from banksman.runs.runners.lease import Lease
from banksman.runtime import service
from banksman.runtime.background import first_error
from banksman.runtime.health import Health, health_server
from banksman.runtime.service import ServiceProcess
from banksman.tool_runner.execution import Admission, CallExecutor, CallWorker
from banksman.tool_runner.identity import RunnerIdentity
from banksman.tool_runner.lifecycle import Lifecycle, LocalRunner, prepare
from banksman.tool_runner.mcp.finder import McpFinder
from banksman.tool_runner.mcp.open_sessions import OpenSessions
from banksman.tool_runner.mcp.servers import McpClient
from banksman.tool_runner.outputs import Outputs
from banksman.tool_runner.processes.processes import ProcessRequests
from banksman.tool_runner.repositories import Repositories
from banksman.tool_runner.router import runner_router
from banksman.tool_runner.settings import ToolRunnerServiceSettings, ToolRunnerSettings
from banksman.tool_runner.tools.converter import Converter
from banksman.tool_runner.tools.diffs import Diffs
from banksman.tool_runner.tools.images import Images
from banksman.tool_runner.workspaces.entry import Reports, objects_of
from banksman.tool_runner.workspaces.files_api import FilesApi
from banksman.tool_runner.workspaces.registry import CallTurns, WorkspaceRegistry
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.snapshots import SnapshotRoom, Snapshots
from banksman.tool_runner.workspaces.workspace import WorkspaceVolume

THREADS = 32
"""Threads for file operations; the default of the interpreter is the number of cores plus 4."""


def run() -> int:
    return service.run("tool-runner", ToolRunnerServiceSettings, main)


async def main(settings: ToolRunnerServiceSettings, process: ServiceProcess) -> None:
    """Connect, without a time limit, and serve until `process.stop`.

    Raises:
        LeaseLost: the lease was not renewed in time; a supervisor restarts the process.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    try:
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            await stack.enter_async_context(health_server(process.health, settings.tool_runner))
            local = await prepare(settings.data_dir, settings.tool_runner)
            if local.sandbox is not None:
                stack.callback(local.sandbox.close)
                sweep = tasks.create_task(local.sandbox.sweep(), name="sweep")
                stack.callback(sweep.cancel)

            async def serve() -> None:
                async with AsyncExitStack() as joined:
                    await _serve(settings, process, tasks, local, joined)

            await process.keep_starting(serve)
    except BaseExceptionGroup as group:
        raise first_error(group) from None


async def _serve(
    settings: ToolRunnerServiceSettings,
    process: ServiceProcess,
    tasks: asyncio.TaskGroup,
    local: LocalRunner,
    stack: AsyncExitStack,
) -> None:
    own = settings.tool_runner
    volume = WorkspaceVolume(local.workspaces.root, settings.disk.limits())
    volume.report(process.health)
    bus = await keep_connecting(lambda: _new_bus(settings, local.identity, process.health), process.stop)
    if bus is None:
        return
    await stack.enter_async_context(bus)
    await stack.enter_async_context(bus.disk.watched(process.health, settings.disk.limits()))
    # The server refuses the key of another runner here, with a reason. Later requests would only time out.
    await bus.ready(settings.nats.connect_timeout_s)
    await stack.enter_async_context(direct_acks(bus, local.identity.runner))
    if not settings.allow_weak_durability:
        durability = Durability.of_run(bus)
        process.health.checks["streams"] = durability.problem
        if not await durability.holds(process.stop):
            return
    clock = await stack.enter_async_context(BrokerClock(bus, stream=names.object_stream(names.WORKSPACES)))
    turns = CallTurns(
        commands=Shares(own.limits.sandbox.max_concurrent_calls, settings.running_calls),
        fetches=Shares(own.concurrent_fetches, settings.running_calls),
    )
    scheduler = _scheduler(bus, clock, own, local, turns)
    active: set[str] = set()
    lease = Lease(
        bus,
        RunnerLease(
            runner=local.identity.runner,
            runner_epoch=local.identity.epoch,
            places=own.limits.sandbox.max_concurrent_calls,
            version=version("banksman"),
            started_at=process.health.started_at,
            offer=own.offer,
        ),
        load=active.__len__,
        problem=local.problem,
        warning=volume.described,
    )
    admission = Admission(lease, scheduler.registry, local.box, local.problem)
    calls = _runner_calls(bus, clock, own, local.identity, admission, active)
    executor = finder = images = requests = None
    if local.box is not None and local.egress is not None and local.processes is not None:
        processes, sandbox = local.processes, own.limits.sandbox
        processes.record = scheduler.registry.record_processes
        processes.idle_s = scheduler.registry.idle_s
        requests = ProcessRequests(processes)
        sessions = OpenSessions(Shares(sandbox.max_sessions), sandbox.session_idle_s)
        stack.push_async_callback(sessions.close)

        async def end_all(tenant: str, conversation: str) -> None:
            await sessions.end(tenant, conversation)
            await processes.end((tenant, conversation), "cancelled")

        scheduler.registry.before_removal = end_all
        scheduler.registry.runs_processes = processes.runs
        mcp = McpClient(local.sandbox if own.sandbox == "bwrap" else None, local.egress, own.limits, sessions)
        images = Images(Converter(own.limits.markdown))
        finder = McpFinder(mcp, local.workspaces, turns)
        outputs = Outputs(
            objects_of(bus, names.OUTPUTS, local.identity.runner),
            local.identity.runner,
            max_tenant_bytes=own.max_tenant_output_bytes,
        )
        executor = CallExecutor(
            bus, calls, admission, turns, local.box, mcp, local.workspaces, outputs, local.processes
        )
    worker = CallWorker(calls, admission, executor, tasks)
    files = FilesApi(
        local.workspaces,
        local.uploads,
        scheduler.registry,
        scheduler,
        lease,
        Diffs(own.limits.markdown),
        finder,
        images,
        requests,
    )
    router = runner_router(local.identity.runner, worker, files)
    calls_subject = subjects.tool_call(local.identity.runner, ANY, ANY)
    control = ControlPlane(bus, router, at_once=(calls_subject,))
    await stack.enter_async_context(control)
    await Lifecycle(lease, worker, scheduler, local.problem, own.drain_s).serve(process, tasks)


def _new_bus(settings: ToolRunnerServiceSettings, identity: RunnerIdentity, health: Health) -> Bus:
    user = tool_runner(settings.tool_runner.runner)
    name = f"{TOOL_RUNNER} {identity.runner}"
    bus = Bus(settings.nats, name=name, inbox_prefix=user.inbox_prefix, background=health.background)
    health.checks["nats"] = bus.problem
    return bus


def _scheduler(
    bus: Bus, clock: BrokerClock, own: ToolRunnerSettings, local: LocalRunner, turns: CallTurns
) -> SnapshotScheduler:
    scratch = local.workspaces.root / ".copies"
    runner = local.identity.runner
    objects = objects_of(bus, names.WORKSPACES, runner)
    room = SnapshotRoom(bus, objects, runner)
    snapshots = Snapshots(objects, runner, scratch, local.user, own.limits.workspace, clock.now, room)
    snapshots.prepare()
    reports = Reports(bus, runner)
    registry = WorkspaceRegistry(
        local.workspaces,
        snapshots,
        reports,
        turns,
        runner_epoch=local.identity.epoch,
        repositories=_repositories(own, local),
    )
    registry.load()
    return SnapshotScheduler(registry, snapshots, reports, own.snapshots)


def _repositories(own: ToolRunnerSettings, local: LocalRunner) -> Repositories | None:
    if local.sandbox is None or local.egress is None:
        return None
    return Repositories(local.sandbox, local.egress, own.limits.sandbox, own.offer)


def _runner_calls(
    bus: Bus,
    clock: BrokerClock,
    own: ToolRunnerSettings,
    identity: RunnerIdentity,
    admission: Admission,
    active: set[str],
) -> RunnerCalls:
    slots = CallSlots(bus, may_read=False)
    return RunnerCalls(
        runner=identity.runner,
        runner_epoch=identity.epoch,
        slots=LeasedSlots(slots, runner_epoch=identity.epoch, holds=admission.holds_lease),
        capacity=Shares(own.queue_capacity),
        now=clock.now,
        may_start=admission.may_start,
        may_repeat=admission.may_repeat,
        fits=admission.is_placed_here,
        began=admission.lease.call_began,
        note=LateResults(bus).store,
        active=active,
    )
