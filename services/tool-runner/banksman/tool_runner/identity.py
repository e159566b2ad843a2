from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_SANDBOX_UID = 61017
"""Above the range that Debian gives to people and below the one systemd uses for dynamic users."""


@dataclass(frozen=True, slots=True)
class SandboxIdentity:
    """The real user that sandboxes are spawned as and that owns the workspaces."""

    uid: int
    gid: int
    switches: bool
    """True when the runner is root and every spawn drops to `uid`."""

    def own(self, fd: int) -> None:
        """Give an open file or pipe to the sandbox user; nothing to do when it is the runner's own."""
        if self.switches:
            os.fchown(fd, self.uid, self.gid)

    def may_traverse(self, directory: Path) -> bool:
        """True when this user may search `directory` and everything above it."""
        return self.first_barrier(directory) is None

    def first_barrier(self, directory: Path) -> Path | None:
        """The highest existing directory on the way to `directory` that this user may not search."""
        resolved = directory.resolve()
        for step in (*reversed(resolved.parents), resolved):
            if step.exists() and not self._may_search(step):
                return step
        return None

    def _may_search(self, directory: Path) -> bool:
        status = directory.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)


def sandbox_identity(sandbox_uid: int = DEFAULT_SANDBOX_UID) -> SandboxIdentity:
    """The runner's own user, or `sandbox_uid` when the runner is root: no command runs from real uid 0.

    Raises:
        ValueError: when `sandbox_uid` is 0 or negative.
    """
    if sandbox_uid <= 0:
        raise ValueError(f"sandbox_uid: a user id above 0 (got {sandbox_uid})")
    if os.geteuid() != 0:
        return SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
    return SandboxIdentity(sandbox_uid, sandbox_uid, switches=True)
