from __future__ import annotations

from pydantic import Field

from banksman.cli.models import ModelChoice
from banksman.runtime.settings import Section


class LocalSettings(Section):
    """How `banksman up` runs the system."""

    agents: int = Field(default=2, ge=1, le=64)
    """Agent processes."""
    ready_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds until every service must be ready; then `up` says which are not, and goes on."""
    drain_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that all services together have to end in order; then they are killed."""


class UpSettings(ModelChoice):
    """What decides which processes run, and where."""

    local: LocalSettings = LocalSettings()
