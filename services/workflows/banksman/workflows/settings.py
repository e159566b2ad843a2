"""Settings of the workflows service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.deployment import users
from banksman.runs.runners.placement import WorkspaceSettings
from banksman.runtime.search import SearchSettings
from banksman.runtime.settings import ApprovalSettings, HealthSettings, ServiceSettings


class WorkflowSettings(HealthSettings):
    slots: int = Field(default=96, ge=1, le=1000)
    """Runs that a process drives at a time; runs that wait for a user or for an agent run do not count.
    Tenants share the slots."""
    waiting: int = Field(default=1000, ge=0, le=5000)
    """Runs of a process that wait for an agent run without a slot; further runs keep their slot. Tenants
    share this number."""
    example_tools: NatsSettings | Literal[False] | None = None
    """The connection of the tenant to which the mock weather tool is offered; False disables the tool. None
    offers it to all tenants if the key of `tool-server-weather` is beside the key of this service."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that the process waits for open runs when it stops; then other processes take them over."""


class WorkflowServiceSettings(ServiceSettings):
    nats: NatsSettings = NatsSettings()
    workflows: WorkflowSettings = WorkflowSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    search: SearchSettings = SearchSettings()

    @property
    def example_tools(self) -> NatsSettings | None:
        """The connection that serves the mock weather tool; None if it is not served."""
        given, own_seed = self.workflows.example_tools, self.nats.nkey_seed_file
        if given is not None or own_seed is None:
            return given or None
        seed = own_seed.with_name(f"{users.tool_server(users.EXAMPLE_SERVER).name}.nk")
        return self.nats.model_copy(update={"nkey_seed_file": seed}) if seed.exists() else None
