"""The room on the volume of the workspaces, for readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from banksman.bus.server_disk import show_volume
from banksman.runtime.disk import DiskLimits, Room
from banksman.runtime.health import Health


@dataclass(frozen=True, slots=True)
class WorkspaceVolume:
    """A full volume makes the runner not ready. It serves calls: they can read, and delete files."""

    root: Path
    limits: DiskLimits

    def report(self, health: Health) -> None:
        health.checks["workspaces"], health.warnings["workspaces"] = self.problem, self.warning
        health.measures["workspaces"] = self.measure

    def described(self) -> str | None:
        """Return a sentence if the volume is nearly full, full or cannot be read."""
        try:
            return self._room().described("the workspaces")
        except OSError as error:
            return f"the disk of the workspaces fails: {error.strerror}"

    async def problem(self) -> str | None:
        return self.described() if self._room().full else None

    async def warning(self) -> str | None:
        return None if self._room().full else self.described()

    async def measure(self) -> None:
        show_volume("workspaces", self._room())

    def _room(self) -> Room:
        return self.limits.room(self.root)
