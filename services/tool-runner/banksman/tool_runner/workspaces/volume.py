"""The room on the volume of the workspaces, for readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from banksman.bus.server_disk import show_volume
from banksman.runtime.disk import DiskLimits
from banksman.runtime.health import Health


@dataclass(frozen=True, slots=True)
class WorkspaceVolume:
    """A full volume makes the runner not ready. It serves calls: they can read, and delete files."""

    root: Path
    limits: DiskLimits

    def report(self, health: Health) -> None:
        health.checks["workspaces"], health.warnings["workspaces"] = self.problem, self.warning
        health.measures["workspaces"] = self.measure

    async def problem(self) -> str | None:
        room = self.limits.room(self.root)
        return room.described("the workspaces") if room.full else None

    async def warning(self) -> str | None:
        room = self.limits.room(self.root)
        return None if room.full else room.described("the workspaces")

    async def measure(self) -> None:
        show_volume("workspaces", self.limits.room(self.root))
