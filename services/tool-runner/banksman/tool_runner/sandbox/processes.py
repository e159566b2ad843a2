"""The process tree below the runner: whom the kernel hands to it, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_BLOCK_BYTES = 512


def children(pid: int) -> Iterator[int]:
    """The direct children of a process; of one that is gone, none."""
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def descendants(pid: int) -> Iterator[int]:
    """A process and everything below it, as far as it can be seen at once."""
    pending = [pid]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def orphans() -> list[int]:
    """Children of this process that a killed spawner left behind.

    Only a spawner starts bwrap, and nothing else in the runner makes pid namespaces: children that others in
    this process started are never among them.
    """
    own_depth = _namespace_depth(os.getpid())
    return [pid for pid in children(os.getpid()) if _is_bwrap(pid) or _namespace_depth(pid) > own_depth]


def _is_bwrap(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "comm").read_text() == "bwrap\n"
    except OSError:
        return False


def _namespace_depth(pid: int) -> int:
    """The number of pid namespaces, seen from ours, in which a process has a number; 0 when it is gone."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) - 1
    return 0


def memory_bytes(pid: int) -> int:
    """Proportional set size of a process and its descendants; what may not be read counts as 0."""
    return sum(_pss_bytes(each) for each in descendants(pid))


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def unlinked_bytes(pid: int) -> int:
    """Blocks of files that a process or its descendants hold open or mapped and that have no name any more.

    A scan of directories does not see them. What may not be looked at counts as 0.
    """
    held: dict[tuple[int, int], int] = {}
    for each in descendants(pid):
        _note_open(each, held)
        _note_mapped(each, held)
    return sum(held.values())


def _note_open(pid: int, held: dict[tuple[int, int], int]) -> None:
    with contextlib.suppress(OSError), os.scandir(_PROC / str(pid) / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                    held[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES


def _note_mapped(pid: int, held: dict[tuple[int, int], int]) -> None:
    """Mappings of files that are not open any more, by their length."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "maps").read_bytes().splitlines():
            if line.endswith(b" (deleted)"):
                addresses, _, _, device, inode, _ = line.split(None, 5)
                begin, _, end = addresses.partition(b"-")
                major, _, minor = device.partition(b":")
                file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                held.setdefault(file, int(end, 16) - int(begin, 16))


async def wait_exit(pidfd: int) -> None:
    """Return when the process behind a pidfd has ended; it still has to be reaped."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def bury_orphans() -> int:
    """Kill and reap every orphan; returns their number once all are gone.

    The kernel kills a pid namespace with its first process, and ends that one last: when an orphan is reaped,
    nothing that ran below it is left.
    """
    buried = 0
    while pids := orphans():
        for pid in pids:
            buried += await _bury(pid)
    return buried


async def _bury(pid: int) -> int:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await wait_exit(pidfd)
        # Another call that ended at the same time may have reaped it.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
        return 1
    finally:
        os.close(pidfd)
