from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, new_id

_FILE = ".runner.json"
_LOCK = ".runner.lock"


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
    """Claim the directory for this process and store its next epoch.

    Args:
        root: The directory of the workspaces.
        runner: The id for a directory that has none yet; None creates one.

    Raises:
        Conflict: another process serves the directory, or the directory has another id than `runner`.
        OSError: the epoch cannot be stored.
    """
    lock_fd = _lock(root)
    wanted = runner
    runner, epoch = _read(root / _FILE, wanted)
    if wanted not in (None, runner):
        raise Conflict(f"workspaces in {root} belong to runner {runner!r}, not to {wanted!r}")
    _write(root, runner, epoch + 1)
    return RunnerIdentity(runner, epoch + 1, lock_fd)


def stored_id(root: Path) -> str | None:
    """Return the id of the runner whose workspaces are in a directory; None if it has none yet.

    Raises:
        Conflict: the stored id is invalid.
    """
    file = root / _FILE
    return _read(file, None)[0] if file.exists() else None


def _lock(root: Path) -> int:
    fd = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise Conflict(
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
    temporary = root / f"{_FILE}.new"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"runner": runner, "epoch": epoch}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(root / _FILE)
    # The rename is durable only after an fsync of the directory. A lower epoch after a power cut would let a
    # restarted runner reuse the message ids of its earlier process.
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
