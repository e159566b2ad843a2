"""Decides which calls this runner accepts."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.calls import CallRequest
from banksman.runs.runners.lease import Lease
from banksman.tool_runner.tools.toolbox import ToolBox
from banksman.tool_runner.workspaces.registry import WorkspaceRegistry


@dataclass
class Admission:
    """The conditions under which this process accepts, starts and repeats calls."""

    lease: Lease
    registry: WorkspaceRegistry
    box: ToolBox | None
    """None if the sandbox failed its self-test; then no call is accepted."""
    problem: str | None
    """Why the sandbox failed its self-test; None if it passed."""
    draining: bool = False
    """True after the process has begun to stop; calls that wait for their turn then end unstarted."""

    def holds_lease(self) -> bool:
        """Return whether this process may act for its runner now."""
        return self.lease.holds

    def may_start(self) -> bool:
        """Return whether a call may start now."""
        return self.lease.holds and not self.draining

    def may_repeat(self, request: CallRequest) -> bool:
        """Return whether the tool is idempotent by the runner's own definition, not by the request."""
        return self.box is not None and self.box.may_repeat(request.call.name)

    def is_placed_here(self, request: CallRequest) -> bool:
        """Return whether the workspace of the request is still on this runner."""
        return self.registry.admits(request.tenant, request.workspace_id, request.place)
