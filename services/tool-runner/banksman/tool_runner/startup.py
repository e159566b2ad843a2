"""Preparations on the local machine before the runner connects to NATS."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.egress.hosts import HostRules
from banksman.tool_runner.egress.private_servers import EgressWithPrivate
from banksman.tool_runner.identity import SandboxIdentity, sandbox_identity
from banksman.tool_runner.mcp.servers import McpServers
from banksman.tool_runner.sandbox.backends import BackendFactory
from banksman.tool_runner.sandbox.base import SandboxBackend
from banksman.tool_runner.sandbox.leftovers import end_leftovers
from banksman.tool_runner.settings import ToolRunnerSettings
from banksman.tool_runner.tools.toolbox import ToolBox, workspace_tools
from banksman.tool_runner.workspaces.runner_identity import RunnerIdentity, claim
from banksman.tool_runner.workspaces.uploads import Uploads
from banksman.tool_runner.workspaces.workspace import WorkspaceStore, default_root

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
"""Seconds that a start may spend on temporary files of interrupted writes."""


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """The parts of a runner that need no NATS."""

    user: SandboxIdentity
    workspaces: WorkspaceStore
    uploads: Uploads
    identity: RunnerIdentity
    sandbox: SandboxBackend | None
    """None if it failed its self-test; `problem` states why."""
    problem: str | None
    box: ToolBox | None
    """None without a sandbox."""
    mcp: McpServers | None
    """None without a sandbox."""


async def prepare(data_dir: Path, own: ToolRunnerSettings) -> LocalRunner:
    """Claim the workspaces, remove the leftovers of a killed runner, and test the sandbox.

    Raises:
        Conflict: another process serves these workspaces.
        OSError: a directory cannot be created.
    """
    user = sandbox_identity(own.sandbox_uid)
    root = own.workspaces_dir or default_root(data_dir, user)
    workspaces = WorkspaceStore(root, user, own.limits.workspace)
    workspaces.prepare()
    # The claim comes first: only the process that holds it may kill and delete below this root.
    identity = claim(workspaces.root, runner=own.runner)
    await asyncio.to_thread(_remove_leftovers, workspaces)
    uploads = Uploads(workspaces.root / ".uploads", max_bytes=own.limits.sandbox.file_size_bytes)
    uploads.prepare()
    sandbox, problem = await BackendFactory(workspaces.root, user, own).create_tested()
    if sandbox is None:
        return LocalRunner(user, workspaces, uploads, identity, None, problem, None, None)
    egress = await _egress(own)
    bwrap = own.sandbox == "bwrap"
    box = workspace_tools(
        sandbox, egress, own.limits, commands_may_connect=own.egress.allow_commands and bwrap
    )
    mcp = McpServers(sandbox if bwrap else None, egress, own.limits)
    return LocalRunner(user, workspaces, uploads, identity, sandbox, problem, box, mcp)


def _remove_leftovers(workspaces: WorkspaceStore) -> None:
    """Kill the processes of a killed runner, then delete the temporary files that they wrote."""
    if ended := end_leftovers(workspaces.root):
        logger.warning("%d sandboxes of an earlier runner were still running and were killed", ended)
    if skipped := workspaces.sweep(SWEEP_S):
        logger.warning("%d workspaces were not swept for interrupted writes within %g s", skipped, SWEEP_S)


async def _egress(own: ToolRunnerSettings) -> Egress:
    # Reading the machine's certificates takes a third of a second on a busy machine.
    ssl_context = await asyncio.to_thread(ssl.create_default_context)
    return EgressWithPrivate(
        own.limits.fetch,
        hosts=HostRules(own.egress.allow_hosts, own.egress.deny_hosts),
        private=own.egress.allow_private_addresses,
        ssl_context=ssl_context,
    )
