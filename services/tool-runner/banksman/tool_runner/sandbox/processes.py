"""The process tree below the runner: its orphans, its resources, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from banksman.tool_runner.sandbox.spawner_process import STARTER_NAME

_PROC = Path("/proc")


def children(pid: int) -> Iterator[int]:
    """Yield the direct children of a process; none if the process has ended."""
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and its descendants; processes that start meanwhile may be missing."""
    pending = [pid]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def orphans() -> list[int]:
    """Return the children of this process that a killed spawner left behind.

    The runner is a subreaper, so the kernel reparents them to it. Only a spawner starts starters and bwrap or
    creates pid namespaces, so no other child of this process is among them.
    """
    own_depth = _namespace_depth(os.getpid())
    return [pid for pid in children(os.getpid()) if _is_parent(pid) or _namespace_depth(pid) > own_depth]


def _is_parent(pid: int) -> bool:
    """Return whether a process is a starter or bwrap."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip() in (STARTER_NAME, "bwrap")
    except OSError:
        return False


def _namespace_depth(pid: int) -> int:
    """Return the number of pid namespaces, from this one down, that contain a process; 0 if it has ended."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) - 1
    return 0


async def wait_exit(pidfd: int) -> None:
    """Return when the process of a pidfd has ended; the caller must reap it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def kill_orphans() -> int:
    """Kill and reap every orphan; return their number when all have ended.

    When the first process of a pid namespace dies, the kernel kills the namespace and lets that process end
    last (pid_namespaces(7)). Once an orphan is reaped, no process below it is left.
    """
    killed = 0
    while pids := orphans():
        for pid in pids:
            killed += await _kill(pid)
    return killed


async def _kill(pid: int) -> int:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await wait_exit(pidfd)
        # Another call that ended at the same time may already have reaped it.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
        return 1
    finally:
        os.close(pidfd)
