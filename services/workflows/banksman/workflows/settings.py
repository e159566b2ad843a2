"""Settings of the workflows service."""

from __future__ import annotations

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.runs.placement import WorkspaceSettings
from banksman.runtime.settings import HealthSettings, ServiceSettings


class WorkflowSettings(HealthSettings):
    """The execution of workflows."""

    slots: int = Field(default=16, ge=1, le=1000)
    """Runs of one workflow that a process drives at a time."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that the process waits for open runs when it stops; then other processes take them over."""


class WorkflowServiceSettings(ServiceSettings):
    """All sections that the service reads."""

    nats: NatsSettings = NatsSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
