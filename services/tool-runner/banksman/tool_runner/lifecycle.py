"""The life of a runner process: preparations on its machine; then lease, calls, last snapshots, release."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from banksman.contracts.calls import DRAINING
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.runs.runners.lease import Lease
from banksman.runtime.background import BackgroundTask
from banksman.runtime.service import ServiceProcess
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.egress.grants import NO_PERMISSIONS, Permissions
from banksman.tool_runner.egress.proxy import CommandProxy
from banksman.tool_runner.execution import CallWorker
from banksman.tool_runner.identity import (
    DirectoryInUse,
    RunnerIdentity,
    SandboxIdentity,
    claim,
    sandbox_identity,
)
from banksman.tool_runner.processes.processes import LastingProcesses
from banksman.tool_runner.processes.sessions import Sessions
from banksman.tool_runner.sandbox.base import Sandbox, SandboxBackend
from banksman.tool_runner.sandbox.bwrap.cgroups import CallCgroups, NotDelegated, divided, examine
from banksman.tool_runner.sandbox.bwrap.processes import end_leftovers
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
from banksman.tool_runner.sandbox.selftest import self_test
from banksman.tool_runner.settings import RunnerLimits, Toolchain, ToolRunnerSettings
from banksman.tool_runner.tools.bash import BashTool
from banksman.tool_runner.tools.converter import Converter
from banksman.tool_runner.tools.files import EditFileTool, SearchCodeTool, WriteFileTool
from banksman.tool_runner.tools.images import Images
from banksman.tool_runner.tools.processes import ProcessListTool, ProcessOutputTool, ProcessStopTool
from banksman.tool_runner.tools.read_file import ReadFileTool
from banksman.tool_runner.tools.toolbox import ToolBox
from banksman.tool_runner.tools.web_fetch import WebFetchTool, WebSearchTool
from banksman.tool_runner.workspaces.files_api import Uploads
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler
from banksman.tool_runner.workspaces.workspace import WorkspaceStore, default_root

logger = logging.getLogger(__name__)

MAX_BESIDE = 32
"""Runners with directories of their own in one data directory."""
SWEEP_S = 5.0
"""Seconds that a start may spend on temporary files of interrupted writes."""
EXIT_WITHIN_S = 5
"""Seconds until the kernel ends a process that lost its lease, and its sandboxes with it."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """The parts of a runner that need no NATS."""

    user: SandboxIdentity
    workspaces: WorkspaceStore
    uploads: Uploads
    identity: RunnerIdentity
    sandbox: SandboxBackend | None
    """None if it failed its self-test."""
    problem: str | None
    """Why it failed; None if it passed."""
    box: ToolBox | None
    egress: Egress | None
    processes: LastingProcesses | None


async def prepare(data_dir: Path, own: ToolRunnerSettings) -> LocalRunner:
    """Claim the workspaces, remove the leftovers of a killed runner, and test the sandbox."""
    user = sandbox_identity(own.sandbox_uid)
    # The claim comes first: only the process that holds it may kill and delete below this root.
    workspaces, identity = _claimed(data_dir, user, own)
    await asyncio.to_thread(_remove_leftovers, workspaces)
    uploads = Uploads(workspaces.root / ".uploads", max_bytes=own.limits.sandbox.file_size_bytes)
    uploads.prepare()
    _check_toolchains(workspaces.root.resolve(), own.toolchains)
    sandbox, problem = await _tested_backend(workspaces.root, user, own)
    if sandbox is None:
        return LocalRunner(user, workspaces, uploads, identity, None, problem, None, None, None)
    egress = await _egress(own)
    permissions = _permissions(own)
    proxy = CommandProxy(egress, own.limits.proxy, permissions) if permissions else None
    processes = LastingProcesses(sandbox, own.limits, proxy, own.processes)
    box = workspace_tools(sandbox, egress, own.limits, processes, own.toolchains)
    return LocalRunner(user, workspaces, uploads, identity, sandbox, problem, box, egress, processes)


def _check_toolchains(root: Path, toolchains: Mapping[str, Toolchain]) -> None:
    """Refuse toolchains that would show the workspaces of all tenants to every command."""
    for name, toolchain in toolchains.items():
        for path in map(Path, toolchain.paths):
            shown = path.resolve()
            if root.is_relative_to(shown) or shown.is_relative_to(root):
                expectation = f"paths outside of the workspaces in {root}"
                raise BadInput(f"tool_runner.toolchains.{name}.paths", str(path), expectation)


def _claimed(
    data_dir: Path, user: SandboxIdentity, own: ToolRunnerSettings
) -> tuple[WorkspaceStore, RunnerIdentity]:
    """Claim the directory of the settings, or the first free one: containers may share a volume."""
    first = own.workspaces_dir or default_root(data_dir, user)
    last = 1 if own.workspaces_dir or own.runner else MAX_BESIDE
    for number in itertools.count(1):
        root = first if number == 1 else first.with_name(f"{first.name}-{number}")
        workspaces = WorkspaceStore(root, user, own.limits.workspace)
        workspaces.prepare()
        try:
            return workspaces, claim(workspaces.root, runner=own.runner)
        except DirectoryInUse:
            if number == last:
                raise
    raise AssertionError("unreachable")


def _remove_leftovers(workspaces: WorkspaceStore) -> None:
    if ended := end_leftovers(workspaces.root):
        logger.warning("%d sandboxes of an earlier runner were still running and were killed", ended)
    if skipped := workspaces.sweep(SWEEP_S):
        logger.warning("%d workspaces were not swept for interrupted writes within %g s", skipped, SWEEP_S)


async def _tested_backend(
    root: Path, user: SandboxIdentity, own: ToolRunnerSettings
) -> tuple[SandboxBackend | None, str | None]:
    """Return a backend that passed the self-test, or None; and the failed checks, or None."""
    created: list[SandboxBackend] = []

    def create() -> SandboxBackend:
        created.append(_backend(root, user, own))
        return created[0]

    report = await self_test(root, user, create)
    if report.ok:
        return created[0], None
    for backend in created:
        backend.close()
    return None, report.summary()


def _backend(root: Path, user: SandboxIdentity, own: ToolRunnerSettings) -> SandboxBackend:
    limits, max_output_chars = own.limits.sandbox, own.limits.max_output_chars
    match own.sandbox:
        case "bwrap":
            return BwrapSandbox(
                user,
                limits,
                max_output_chars=max_output_chars,
                cgroups=_call_cgroups(root),
                etc=root / ".etc",
            )
        case "docker":
            # Importing the Docker SDK takes longer than the rest of the start.
            from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox

            return DockerSandbox(root, user, limits, own.docker, max_output_chars=max_output_chars)
        case _:
            assert_never(own.sandbox)


def _call_cgroups(root: Path) -> CallCgroups | None:
    try:
        cgroups = divided(examine(), root)
    except NotDelegated as reason:
        logger.info("commands are limited by rlimits and watchdogs: %s", reason)
        return None
    for hierarchy in cgroups.hierarchies:
        names = ", ".join(sorted(hierarchy.controllers))
        logger.info("each command has a cgroup with %s below %s", names, hierarchy.directory)
    return cgroups


def workspace_tools(
    sandbox: Sandbox,
    egress: Egress,
    limits: RunnerLimits,
    processes: LastingProcesses | None = None,
    toolchains: Mapping[str, Toolchain] | None = None,
) -> ToolBox:
    """With a proxy of `processes`, the policy of a call can grant its command a way to `egress`."""
    processes = processes or LastingProcesses(sandbox, limits)
    converter = Converter(limits.markdown)
    return ToolBox(
        (
            BashTool(limits, processes, Sessions(processes), toolchains or {}),
            ReadFileTool(limits, converter, Images(converter)),
            EditFileTool(limits),
            WriteFileTool(limits),
            WebFetchTool(egress, limits, converter),
            WebSearchTool(egress, limits),
            SearchCodeTool(sandbox, limits),
            ProcessOutputTool(processes, limits.max_output_chars),
            ProcessStopTool(processes, limits.max_output_chars),
            ProcessListTool(processes),
        )
    )


def _permissions(own: ToolRunnerSettings) -> Permissions:
    if own.sandbox != "bwrap":
        return NO_PERMISSIONS
    return Permissions(own.egress.allow_commands, HostRules(allowed=own.egress.registries))


async def _egress(own: ToolRunnerSettings) -> Egress:
    # Reading the machine's certificates takes a third of a second on a busy machine.
    ssl_context = await asyncio.to_thread(ssl.create_default_context)
    return Egress(
        own.limits.fetch,
        hosts=HostRules(own.egress.allow_hosts, own.egress.deny_hosts),
        private=own.egress.allow_private_addresses,
        ssl_context=ssl_context,
    )


@dataclass
class Lifecycle:
    lease: Lease
    worker: CallWorker
    scheduler: SnapshotScheduler
    problem: str | None
    """See `LocalRunner.problem`."""
    drain_s: float
    """Seconds that running calls get at the end before they are killed."""

    async def serve(self, process: ServiceProcess, tasks: asyncio.TaskGroup) -> None:
        """Serve until `process.stop`, then end in an order that loses no work."""
        await self.lease.take()
        scheduling = process.health.background.run("workspaces", self.scheduler.run)
        # Not a supervised background task: without a lease the process must end.
        renewing = tasks.create_task(self._renew_lease(scheduling), name="lease")
        process.health.checks |= {"sandbox": self._sandbox_problem, "lease": self._lease_problem}
        process.ready()
        await process.stop.wait()
        self.lease.withdraw(DRAINING)
        await self.worker.drain(self.drain_s)
        await scheduling.stop()
        # The lease is renewed until the last snapshot is stored: without it, another runner could take over.
        await self.scheduler.snapshot_all()
        await self.lease.release()
        renewing.cancel()
        await asyncio.wait([renewing])

    async def _renew_lease(self, scheduling: BackgroundTask) -> None:
        """Renew the lease. If it is lost, end every call and then the process."""
        try:
            await self.lease.keep()
        except BanksmanError:
            # The default action of SIGALRM ends the process even if its event loop is blocked.
            signal.alarm(EXIT_WITHIN_S)
            # Another runner may have the workspaces now.
            scheduling.cancel()
            await self.worker.fence()
            raise

    async def _sandbox_problem(self) -> str | None:
        return self.problem

    async def _lease_problem(self) -> str | None:
        return None if self.lease.holds else "the lease is not renewed"
