"""What a workspace holds, measured and deleted without trusting the tree: its owner is hostile code."""

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
    """What a workspace holds. A measurement stops at the first limit it finds broken."""

    disk_bytes: int = 0
    entries: int = 0
    depth: int = 0

    def excess(self, limits: WorkspaceLimits) -> str | None:
        """Which limit is broken, for a person; None when none is."""
        if self.disk_bytes > limits.max_bytes:
            return f"the workspace holds {self.disk_bytes} bytes or more, its limit is {limits.max_bytes}"
        if self.entries > limits.max_entries:
            return f"the workspace holds {self.entries} files or more, its limit is {limits.max_entries}"
        if self.depth > limits.max_depth:
            return f"the workspace has directories {self.depth} deep, its limit is {limits.max_depth}"
        return None


def measure(directory: Path, limits: WorkspaceLimits) -> Usage:
    """Count the tree below `directory`, following no link; stops early once a limit is broken.

    What disappears or is closed to us while we look counts as nothing.

    Raises:
        OSError: when `directory` itself cannot be opened.
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
    """Status and depth of every entry, depth first; holds one descriptor a level."""
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
    """The last measurement of one workspace, renewed for at most a set share of the time."""

    def __init__(self, directory: Path, limits: WorkspaceLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._not_before = 0.0
        self.usage = Usage()

    @property
    def due(self) -> bool:
        """True when measuring again keeps within the share."""
        return time.monotonic() >= self._not_before

    async def renew(self) -> Usage:
        """Measure in a thread; a caller that is cancelled leaves the measurement to finish by itself."""
        self._not_before = float("inf")
        # What waits for a thread would be cancelled with its caller, and nothing would be due ever again.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._measure))

    def excess(self) -> str | None:
        """Which limit the last measurement found broken."""
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
    """Delete `directory` and everything in it, however deep and whatever its modes.

    Each subdirectory is first moved to the top, so that neither recursion nor descriptors grow with depth.

    Raises:
        OSError: when something could not be deleted.
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
    """Unlink the files of a directory, move its subdirectories to the top under numbers not yet used."""
    for name in os.listdir(fd):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=fd)
        elif fd != top:
            os.chmod(name, 0o700, dir_fd=fd)
            moved += 1
            os.rename(name, f".deleted-{moved}-{time.monotonic_ns()}", src_dir_fd=fd, dst_dir_fd=top)
    return moved
