"""Measures and deletes file trees without trusting them: hostile code owns a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.limits import WorkspaceLimits

_BLOCK_BYTES = 512
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Usage:
    """The size of a workspace. A measurement stops at the first limit that is exceeded."""

    disk_bytes: int = 0
    entries: int = 0
    depth: int = 0

    def excess(self, limits: WorkspaceLimits) -> str | None:
        """Return a sentence about the exceeded limit; None if no limit is exceeded."""
        if self.disk_bytes > limits.max_bytes:
            return f"the workspace has {self.disk_bytes} bytes or more, its limit is {limits.max_bytes}"
        if self.entries > limits.max_entries:
            return f"the workspace has {self.entries} files or more, its limit is {limits.max_entries}"
        if self.depth > limits.max_depth:
            return f"the workspace has {self.depth} levels of directories, its limit is {limits.max_depth}"
        return None


def measure(directory: Path, limits: WorkspaceLimits) -> Usage:
    """Measure the tree below `directory` without following links; stop early at an exceeded limit.

    Entries that disappear during the measurement, or that this process may not open, do not count.

    Raises:
        OSError: `directory` itself cannot be opened.
    """
    disk_bytes = entries = deepest = 0
    linked: set[tuple[int, int]] = set()
    for status, depth in _walk(directory, limits.max_depth):
        entries += 1
        deepest = max(deepest, depth)
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode) or _first(linked, status):
            disk_bytes += status.st_blocks * _BLOCK_BYTES
        usage = Usage(disk_bytes, entries, deepest)
        if usage.excess(limits):
            return usage
    return Usage(disk_bytes, entries, deepest)


def _first(seen: set[tuple[int, int]], status: os.stat_result) -> bool:
    key = (status.st_dev, status.st_ino)
    new = key not in seen
    seen.add(key)
    return new


def _walk(directory: Path, max_depth: int) -> Iterator[tuple[os.stat_result, int]]:
    """Yield status and depth of every entry, depth first. One descriptor is open per level."""
    with contextlib.ExitStack() as open_directories:
        yield from _walk_fd(_opened(str(directory), None, open_directories), 1, max_depth)


def _walk_fd(fd: int, depth: int, max_depth: int) -> Iterator[tuple[os.stat_result, int]]:
    with os.scandir(fd) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry.stat(follow_symlinks=False), depth
                if entry.is_dir(follow_symlinks=False) and depth <= max_depth:
                    with contextlib.ExitStack() as child:
                        yield from _walk_fd(_opened(entry.name, fd, child), depth + 1, max_depth)


def _opened(name: str, parent: int | None, owner: contextlib.ExitStack) -> int:
    fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    owner.callback(os.close, fd)
    return fd


class QuotaMeter:
    """The last measurement of one workspace. `due` limits the share of time spent on measuring."""

    def __init__(self, directory: Path, limits: WorkspaceLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._not_before = 0.0
        self.usage = Usage()

    @property
    def due(self) -> bool:
        """True if another measurement stays within `scan_share`."""
        return time.monotonic() >= self._not_before

    async def renew(self) -> Usage:
        """Measure in a thread; the measurement finishes even if the caller is cancelled."""
        self._not_before = float("inf")
        # Without the shield, cancelling the caller would cancel a measurement that waits for a thread. Then
        # `_not_before` would stay infinite, and the workspace would never be measured again.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._measure))

    def excess(self) -> str | None:
        """Return a sentence about the limit that the last measurement found exceeded, else None."""
        return self.usage.excess(self._limits)

    def _measure(self) -> Usage:
        started = time.monotonic()
        try:
            self.usage = measure(self._directory, self._limits)
        except OSError:
            self.usage = Usage()
        ended = time.monotonic()
        self._not_before = ended + (ended - started) / self._limits.scan_share
        return self.usage


def delete_tree(directory: Path) -> None:
    """Delete `directory` and everything in it, at any depth and with any file modes.

    `shutil.rmtree` recurses per level and stops at directories without write permission. Here each
    subdirectory is first moved to the top, so neither recursion nor open descriptors grow with the depth.

    Raises:
        OSError: a file could not be deleted.
    """
    if not directory.exists():
        return
    with contextlib.ExitStack() as owner:
        os.chmod(directory, 0o700)
        top = _opened(str(directory), None, owner)
        moved = _empty(top, top, 0)
        while names := os.listdir(top):
            for name in names:
                moved = _delete_moved(top, name, moved)
    os.rmdir(directory)


def _delete_moved(top: int, name: str, moved: int) -> int:
    os.chmod(name, 0o700, dir_fd=top)
    with contextlib.ExitStack() as owner:
        moved = _empty(_opened(name, top, owner), top, moved)
    os.rmdir(name, dir_fd=top)
    return moved


def _empty(fd: int, top: int, moved: int) -> int:
    """Unlink the files of a directory and move its subdirectories to the top under unused numbers."""
    for name in os.listdir(fd):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=fd)
        elif fd != top:
            os.chmod(name, 0o700, dir_fd=fd)
            moved += 1
            os.rename(name, f".deleted-{moved}-{time.monotonic_ns()}", src_dir_fd=fd, dst_dir_fd=top)
    return moved
