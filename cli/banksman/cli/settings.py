"""Settings of `banksman up`. `doctor` reads them too."""

from __future__ import annotations

from pydantic import Field

from banksman.cli.models import ModelChoice
from banksman.runtime.settings import Section


class LocalSettings(Section):
    """How `banksman up` runs the system."""

    agents: int = Field(default=1, ge=1, le=64)
    """Number of agent processes. Each executes many runs at once."""
    runners: int = Field(default=1, ge=1, le=16)
    """Number of tool-runners. Each has its own workspaces and its own key."""
    example_tools: bool = True
    """Whether models are offered the mock weather tool of the examples."""
    ready_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds until every service should be ready; then `up` names those that are not, and continues."""
    drain_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds for all services together to stop gracefully; then they are killed."""


class UpSettings(ModelChoice):
    """Settings that determine which processes run, and where."""

    local: LocalSettings = LocalSettings()
