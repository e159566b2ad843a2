"""Measures and deletes file trees without trusting them: hostile code owns a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.settings import MIB, WorkspaceLimits
from banksman.tool_runner.workspaces.beneath import OPEN_DIRECTORY, change_mode, opened_directory
from banksman.tool_runner.workspaces.changes import FileIndex, joined

_BLOCK_BYTES = 512
_OPEN_LEVELS = 128
"""Levels of directories that a measurement keeps open."""
_FEW_ENTRIES = 200
_GROWTH_BYTES = 256 * MIB
_GROWTH_ENTRIES = 10_000
"""Minimum growth above a limit before the workspace is locked: a measurement ends a command late."""


@dataclass(frozen=True, slots=True)
class WorkspaceUsage:
    disk_bytes: int = 0
    entries: int = 0
    depth: int = 0
    complete: bool = True
    """False if the measurement ended early: the workspace may be larger."""
    moved: bool = False
    """True if directories below level 128 were moved meanwhile, so that a part could not be measured."""

    def excess(self, limits: WorkspaceLimits) -> str | None:
        more = "" if self.complete else " or more"
        if self.disk_bytes > limits.max_bytes:
            return f"the workspace has {self.disk_bytes} bytes{more}; its limit is {limits.max_bytes}"
        if self.entries > limits.max_entries:
            entries = f"{self.entries} files and directories{more}"
            return f"the workspace has {entries}; its limit is {limits.max_entries}"
        if self.depth > limits.max_depth:
            return f"the workspace has {self.depth} levels of directories; its limit is {limits.max_depth}"
        if self.moved:
            return f"directories below level {_OPEN_LEVELS} were moved while the workspace was measured"
        return None

    def bounds(self, limits: WorkspaceLimits) -> WorkspaceLimits:
        """Return the limits of a command that starts now: an exceeded limit becomes the current size."""
        return limits.model_copy(
            update={
                "max_bytes": max(limits.max_bytes, self.disk_bytes),
                "max_entries": max(limits.max_entries, self.entries),
                "max_depth": max(limits.max_depth, self.depth),
            }
        )

    def locked(self, limits: WorkspaceLimits) -> bool:
        """Return whether a workspace is so far above a limit that no command may run in it.

        A command that grows such a workspace is killed only after it has grown a little. Without this bound,
        many commands together could grow it without end.
        """
        return self.disk_bytes > limits.max_bytes + max(
            limits.max_bytes, _GROWTH_BYTES
        ) or self.entries > limits.max_entries + max(limits.max_entries, _GROWTH_ENTRIES)


def measure(
    directory: Path, bounds: WorkspaceLimits | None = None, index: FileIndex | None = None
) -> WorkspaceUsage:
    """Measure the tree below `directory`, of any depth, without following links; stop early above `bounds`.

    Its files are added to `index`. Entries that disappear during the measurement, or that this process may
    not open, do not count.
    """
    disk_bytes = entries = deepest = 0
    linked: set[tuple[int, int]] = set()
    try:
        for status, depth, path in _walk(directory):
            entries += 1
            if index is not None and path is not None:
                index.add(path, status)
            deepest = max(deepest, depth)
            if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode) or _first(linked, status):
                disk_bytes += status.st_blocks * _BLOCK_BYTES
            if bounds is not None and (
                disk_bytes > bounds.max_bytes or entries > bounds.max_entries or deepest > bounds.max_depth
            ):
                return WorkspaceUsage(disk_bytes, entries, deepest, complete=False)
    except _DirectoryMoved:
        return WorkspaceUsage(disk_bytes, entries, deepest, complete=False, moved=True)
    return WorkspaceUsage(disk_bytes, entries, deepest)


def _first(seen: set[tuple[int, int]], status: os.stat_result) -> bool:
    key = _identity(status)
    new = key not in seen
    seen.add(key)
    return new


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _DirectoryMoved(Exception):
    """A directory was moved while the walk was below it, so the way back is lost."""


@dataclass(slots=True)
class _Level:
    fd: int
    """-1 while it is closed."""
    identity: tuple[int, int]
    path: str | None
    """Relative to the top; None if it is too long."""
    unvisited: list[str]
    """Names of its subdirectories."""


_Visited = tuple[os.stat_result, int, str | None]


def _walk(directory: Path) -> Iterator[_Visited]:
    """Yield status, depth and path of every entry; the path is None if it is too long.

    The upper levels stay open, so that no rename leads the walk elsewhere. Deeper levels are closed and
    reopened through `..`, so that neither descriptors nor recursion grow with the depth. Raises
    `_DirectoryMoved` if `..` of a deep directory is another directory now.
    """
    path: list[_Level] = []
    try:
        path.append((yield from _entered(str(directory), None, 1, "")))
        while True:
            here = path[-1]
            if here.unvisited:
                name = here.unvisited.pop()
                with contextlib.suppress(OSError):
                    below = yield from _entered(name, here.fd, len(path) + 1, joined(here.path, name))
                    if len(path) > _OPEN_LEVELS:
                        _close(here)
                    path.append(below)
            elif len(path) == 1:
                return
            else:
                _return_to(path[-2], here.fd)
                _close(path.pop())
    finally:
        for level in path:
            _close(level)


def _entered(
    name: str, parent: int | None, depth: int, path: str | None
) -> Generator[_Visited, None, _Level]:
    """Open a directory and yield its entries as `_walk` does; return it with its subdirectories."""
    level = _Level(os.open(name, OPEN_DIRECTORY, dir_fd=parent), (0, 0), path, [])
    try:
        level.identity = _identity(os.fstat(level.fd))
        with os.scandir(level.fd) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False), depth, joined(path, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        level.unvisited.append(entry.name)
    except BaseException:
        _close(level)
        raise
    return level


def _return_to(parent: _Level, child_fd: int) -> None:
    if parent.fd < 0:
        fd = os.open("..", OPEN_DIRECTORY, dir_fd=child_fd)
        if _identity(os.fstat(fd)) != parent.identity:
            os.close(fd)
            raise _DirectoryMoved
        parent.fd = fd


def _close(level: _Level) -> None:
    if level.fd >= 0:
        os.close(level.fd)
        level.fd = -1


class QuotaMeter:
    """The last measurement of one workspace. `due` limits the share of time spent on measuring.

    Between two measurements, the workspace has grown at most by what its file system has lost in free space.
    If that may exceed a limit, the next measurement is due at once.
    """

    def __init__(self, directory: Path, limits: WorkspaceLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._not_before = 0.0
        self._not_before_if_outgrown = 0.0
        self._file_system: os.statvfs_result | None = None
        """The file system with its free space when the last measurement began; None before the first one."""
        self.usage = WorkspaceUsage(complete=False)

    @property
    def due(self) -> bool:
        """True if another measurement stays within `scan_share`, or the workspace may exceed a limit now."""
        now = time.monotonic()
        return now >= self._not_before or (now >= self._not_before_if_outgrown and self._outgrown())

    async def current(self) -> WorkspaceUsage:
        if not self.usage.complete or self.excess() or self._outgrown():
            await self.renew()
        return self.usage

    async def before_write(self) -> None:
        if self.due or self.excess():
            await self.renew()

    async def indexed(self, bounds: WorkspaceLimits | None = None) -> FileIndex:
        """Measure, and return an index of the files."""
        if self.usage.complete and self.usage.entries <= _FEW_ENTRIES:
            # A thread takes longer than the measurement of a small workspace.
            few = self._limits.model_copy(update={"max_entries": 2 * _FEW_ENTRIES})
            if self._measure(few, index := FileIndex()).complete:
                return index
        await self.renew(bounds, index := FileIndex())
        return index

    async def renew(
        self, bounds: WorkspaceLimits | None = None, index: FileIndex | None = None
    ) -> WorkspaceUsage:
        """Measure in a thread, also if the caller is cancelled. Above `bounds`, it stops early."""
        # No other measurement is due while this one runs.
        self._not_before = self._not_before_if_outgrown = float("inf")
        # Without the shield, cancelling the caller would cancel a measurement that waits for a thread. Then
        # `_not_before` would stay infinite, and the workspace would never be measured again.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(None, self._measure, bounds, index))

    def excess(self) -> str | None:
        return self.usage.excess(self._limits)

    def has_room(self, size: int) -> bool:
        return self.usage.disk_bytes + size <= self._limits.max_bytes

    def _outgrown(self) -> bool:
        before = self._file_system
        if before is None:
            return True
        try:
            now = os.statvfs(self._directory)
        except OSError:
            return True
        lost_bytes = before.f_bfree * before.f_frsize - now.f_bfree * now.f_frsize
        return lost_bytes > max(0, self._limits.max_bytes - self.usage.disk_bytes) or (
            before.f_ffree - now.f_ffree > max(0, self._limits.max_entries - self.usage.entries)
        )

    def _measure(self, bounds: WorkspaceLimits | None, index: FileIndex | None) -> WorkspaceUsage:
        started = time.monotonic()
        try:
            self._file_system = os.statvfs(self._directory)
            self.usage = measure(self._directory, bounds, index)
            if index is not None:
                index.complete = self.usage.complete
        except OSError:
            self.usage = WorkspaceUsage()
        ended = time.monotonic()
        self._not_before = ended + (ended - started) / self._limits.scan_share
        self._not_before_if_outgrown = ended + (ended - started)
        return self.usage


def delete_tree(directory: Path) -> None:
    """Delete `directory` and everything in it, at any depth and with any file modes.

    `shutil.rmtree` recurses per level and stops at directories without write permission. Here each
    subdirectory is first moved to the top, so neither recursion nor open descriptors grow with the depth.
    """
    if not directory.exists():
        return
    change_mode(str(directory), None, 0o700)
    with opened_directory(directory) as top:
        moved = _empty(top, top, 0)
        while names := os.listdir(top):
            for name in names:
                moved = _delete_moved(top, name, moved)
    os.rmdir(directory)


def _delete_moved(top: int, name: str, moved: int) -> int:
    change_mode(name, top, 0o700)
    with opened_directory(name, top) as fd:
        moved = _empty(fd, top, moved)
    os.rmdir(name, dir_fd=top)
    return moved


def _empty(fd: int, top: int, moved: int) -> int:
    """Unlink the files of a directory and move its subdirectories to the top under unused numbers."""
    for name in os.listdir(fd):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=fd)
        elif fd != top:
            change_mode(name, fd, 0o700)
            moved += 1
            os.rename(name, f".deleted-{moved}-{time.monotonic_ns()}", src_dir_fd=fd, dst_dir_fd=top)
    return moved
