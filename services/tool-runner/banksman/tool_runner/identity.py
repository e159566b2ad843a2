from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_SANDBOX_UID = 61017
"""User id of commands if the runner is root: above the ids that Debian assigns to users, and below the range
of systemd's dynamic users."""


@dataclass(frozen=True, slots=True)
class SandboxIdentity:
    """The real user that runs sandboxes and owns the workspaces."""

    uid: int
    gid: int
    switches: bool
    """True if the runner is root and every spawn switches to `uid`."""

    def own(self, fd: int) -> None:
        """Give an open file or pipe to the sandbox user, unless that is the runner's own user."""
        if self.switches:
            os.fchown(fd, self.uid, self.gid)

    def may_traverse(self, directory: Path) -> bool:
        """Return whether this user may search `directory` and every directory above it."""
        return self.first_barrier(directory) is None

    def first_barrier(self, directory: Path) -> Path | None:
        """Return the highest existing directory above `directory` that this user may not search, if any."""
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
    """Return the runner's own user, or `sandbox_uid` if the runner is root.

    No command runs as real uid 0: in a container with `systempaths=unconfined`, uid 0 can write the host's
    sysctls.

    Raises:
        ValueError: `sandbox_uid` is 0 or negative.
    """
    if sandbox_uid <= 0:
        raise ValueError(f"sandbox_uid: expected a user id above 0 (got {sandbox_uid})")
    if os.geteuid() != 0:
        return SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
    return SandboxIdentity(sandbox_uid, sandbox_uid, switches=True)
