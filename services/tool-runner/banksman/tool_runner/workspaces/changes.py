"""What commands change in a workspace: the differences between two indexes of its files."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from banksman.contracts.tools import Change, PathChange
from banksman.contracts.wire import json_bytes
from banksman.contracts.workspaces import RESERVED_PREFIX
from banksman.tool_runner.workspaces.files import printable

MAX_CHANGES = 200
"""Changed files of a call that its result lists."""
MAX_CHANGES_BYTES = 32 * 1024
"""Bytes of these as JSON: paths may be long, and an event has a limit."""
MAX_INDEXED = 250_000
"""Files in the indexes of all workspaces that are kept; a file takes about 200 bytes."""
MANY_FILES = 1000
"""Files of which a thread compares the indexes."""
_MAX_PATH_CHARS = 4096
_READABLE = stat.S_IRUSR | stat.S_IXUSR
_REPOSITORY = "/.git/"
_OWN = RESERVED_PREFIX.rstrip("-")
"""Prefix of the home directory of commands, of stored outputs, and of files that are being written."""


class FileIndex(dict[str, int]):
    """A number for each file and link by its path, which differs after any change of the file.

    The kernel sets the time of a change, `st_ctime`; a command cannot. All files below a `.git` count as one:
    a commit changes dozens. A directory that its owner may not read counts as a file.
    """

    complete = True
    """False if the measurement ended early."""

    def add(self, path: str, status: stat_result) -> None:
        if _is_open_directory(status) or is_own(path):
            return
        inside = f"/{path}".find(_REPOSITORY)
        shown = path if inside < 0 else path[: inside + len(_REPOSITORY) - 2]
        self[shown] = self.get(shown, 0) ^ hash((path, status.st_ctime_ns, status.st_ino, status.st_size))


def is_own(path: str) -> bool:
    """Return whether a path is of the runner's own files, which no list shows."""
    return path.startswith(_OWN)


def _is_open_directory(status: stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and status.st_mode & _READABLE == _READABLE


def joined(prefix: str | None, name: str) -> str | None:
    """Return a path; None if it is too long to be opened: deep trees would take memory without bound."""
    if prefix is None or len(prefix) + len(name) > _MAX_PATH_CHARS:
        return None
    return f"{prefix}/{name}" if prefix else name


@dataclass(frozen=True, slots=True)
class Changes:
    paths: tuple[PathChange, ...] = ()
    """The first changes, those with the fewest directories above them first."""
    more: int = 0
    """The number of further changes."""


def differences(before: FileIndex, after: FileIndex) -> dict[str, Change]:
    """Return all changes by path. If `after` is not complete, missing files do not count as deleted."""
    found: dict[str, Change] = {
        path: "modified" if path in before else "created"
        for path, state in after.items()
        if before.get(path) != state
    }
    if after.complete:
        found |= dict.fromkeys(before.keys() - after.keys(), "deleted")
    return found


def bounded(found: dict[str, Change]) -> Changes:
    shown: list[PathChange] = []
    room = MAX_CHANGES_BYTES
    for path in sorted(found, key=lambda path: (path.count("/"), path))[:MAX_CHANGES]:
        change = PathChange(path=printable(path), change=found[path])
        room -= json_bytes(change)
        if room < 0:
            break
        shown.append(change)
    return Changes(tuple(shown), len(found) - len(shown))


class KeptIndexes:
    """The last index of each workspace. Those that were used least recently are dropped first."""

    def __init__(self) -> None:
        self._kept: dict[Path, FileIndex] = {}

    def get(self, directory: Path) -> FileIndex | None:
        return self._kept.get(directory)

    def keep(self, directory: Path, index: FileIndex) -> None:
        self.drop(directory)
        if index.complete:
            self._kept[directory] = index
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MAX_INDEXED:
            self._kept.pop(next(iter(self._kept)))

    def drop(self, directory: Path) -> None:
        self._kept.pop(directory, None)

    def record(self, directory: Path, path: str) -> None:
        if (index := self._kept.get(directory)) is None:
            return
        index.pop(path, None)
        with contextlib.suppress(OSError):
            index.add(path, os.stat(directory / path, follow_symlinks=False))
