"""Who a runner is: the user that runs its commands, and the id under which it serves workspaces."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, new_id
from banksman.runtime.durable_files import replace_file, sync_directory

DEFAULT_SANDBOX_UID = 61017
"""User id of commands if the runner is root: above the ids that Debian assigns to users, and below the range
of systemd's dynamic users."""
_FILE = ".runner.json"
_LOCK = ".runner.lock"


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
        return self.first_barrier(directory) is None

    def first_barrier(self, directory: Path) -> Path | None:
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
    """
    if sandbox_uid <= 0:
        raise ValueError(f"sandbox_uid: expected a user id above 0 (got {sandbox_uid})")
    if os.geteuid() != 0:
        return SandboxIdentity(os.geteuid(), os.getegid(), switches=False)
    return SandboxIdentity(sandbox_uid, sandbox_uid, switches=True)


class DirectoryInUse(Conflict):
    """Another process serves the directory."""


@dataclass(frozen=True, slots=True)
class RunnerIdentity:
    """The runner that serves the workspaces of one directory. One process at a time has this identity."""

    runner: str
    """Stored beside the workspaces, so that a restarted runner is the same runner."""
    epoch: int
    """Counts the starts of this runner from 1."""
    lock_fd: int
    """The locked file. The kernel releases the lock when the process ends, even by a kill."""


def claim(root: Path, *, runner: str | None = None) -> RunnerIdentity:
    """Claim the directory of the workspaces for this process and store its next epoch.

    A directory that has no id yet gets `runner`, or a new one. Raises `DirectoryInUse` if another process
    serves the directory, and `Conflict` if it has another id than `runner`.
    """
    lock_fd = _lock(root)
    wanted = runner
    runner, epoch = _read(root / _FILE, wanted)
    if wanted not in (None, runner):
        raise Conflict(f"workspaces in {root} belong to runner {runner!r}, not to {wanted!r}")
    _write(root, runner, epoch + 1)
    return RunnerIdentity(runner, epoch + 1, lock_fd)


def stored_id(root: Path) -> str | None:
    """Return the id of the runner whose workspaces are in a directory; None if it has none yet."""
    file = root / _FILE
    return _read(file, None)[0] if file.exists() else None


def _lock(root: Path) -> int:
    fd = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DirectoryInUse(
            f"workspaces in {root} are served by another runner: two runners cannot share a directory"
        ) from error
    return fd


def _read(path: Path, wanted: str | None) -> tuple[str, int]:
    if not path.exists():
        return wanted or new_id("r"), 0
    stored = cast(dict[str, object], json.loads(path.read_text(encoding="utf-8")))
    epoch = stored.get("epoch")
    if not isinstance(epoch, int):
        raise Conflict(f"{path}: epoch: expected a number (got {epoch!r})")
    return check_token(str(stored.get("runner", "")), "runner"), epoch


def _write(root: Path, runner: str, epoch: int) -> None:
    replace_file(root / _FILE, json.dumps({"runner": runner, "epoch": epoch}))
    # The rename is durable only after an fsync of the directory. A lower epoch after a power cut would let a
    # restarted runner reuse the message ids of its earlier process.
    sync_directory(root)
