"""Settings of the workflows service."""

from __future__ import annotations

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.runs.placement import WorkspaceSettings
from banksman.runtime.settings import ApprovalSettings, HealthSettings, ServiceSettings


class WorkflowSettings(HealthSettings):
    """The execution of workflows."""

    slots: int = Field(default=96, ge=1, le=1000)
    """Runs that a process drives at a time; those that wait for a user or for an agent run do not count.
    Tenants share them."""
    waiting: int = Field(default=1000, ge=0, le=5000)
    """Runs of a process that wait for an agent run without a slot; more keep theirs. Tenants share them."""
    example_tools: NatsSettings | None = None
    """The connection of a tenant to which the mock weather tool is offered; None does not serve it."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that the process waits for open runs when it stops; then other processes take them over."""


class WorkflowServiceSettings(ServiceSettings):
    """All sections that the service reads."""

    nats: NatsSettings = NatsSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
