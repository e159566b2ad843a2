"""Processes of sandboxes: trees, orphans of a killed spawner, and leftovers of a killed runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from banksman.tool_runner.sandbox.base import WORKSPACE
from banksman.tool_runner.sandbox.bwrap.spawner_process import STARTER_NAME

_PROC = Path("/proc")


def children(pid: int) -> Iterator[int]:
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
            with contextlib.ExitStack() as opened:
                if (pidfd := kill_process(pid, lambda _: True, opened)) is not None:
                    killed += 1
                    await wait_exit(pidfd)
                    # Another call that ended at the same time may already have reaped it.
                    with contextlib.suppress(ChildProcessError):
                        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - WNOHANG
    return killed


def kill_process(pid: int, is_meant: Callable[[int], bool], opened: contextlib.ExitStack) -> int | None:
    """Kill a process and return its pidfd, which `opened` closes; None if it has ended or is not meant."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    opened.callback(os.close, pidfd)
    # The id may have been reused before the pidfd was opened. From here, the pidfd names one process.
    if not is_meant(pid):
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd


def end_leftovers(root: Path, *, wait_s: float = 5.0) -> int:
    """Kill every sandbox with a workspace below `root`, of any user and any parent; return their number.

    The caller has claimed `root` and does not use it yet. Returns when the sandboxes have ended, or after
    `wait_s` seconds.
    """
    place = _location(root)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as opened:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        sandboxes = [pid for pid in pids if _is_sandbox_of(pid, place)]
        found = [kill_process(pid, lambda pid: _is_sandbox_of(pid, place), opened) for pid in sandboxes]
        killed = [pidfd for pidfd in found if pidfd is not None]
        poll = select.poll()
        for pidfd in killed:
            poll.register(pidfd, select.POLLIN)
        running = len(killed)
        while running and (left_s := deadline - time.monotonic()) > 0:
            for pidfd, _ in poll.poll(left_s * 1000):
                poll.unregister(pidfd)
                running -= 1
        return len(killed)


@dataclass(frozen=True, slots=True)
class _Location:
    """A directory, independent of mount namespaces."""

    device: str
    """`major:minor`."""
    path: PurePosixPath
    """Path within the file system of the device."""


def _location(directory: Path) -> _Location:
    resolved = PurePosixPath(directory.resolve())
    holding = [mount for mount in _mounts("self") if resolved.is_relative_to(mount.point)]
    # A later mount at the same point hides the earlier one.
    mount = max(reversed(holding), key=lambda mount: len(mount.point.parts))
    return _Location(mount.source.device, mount.source.path / resolved.relative_to(mount.point))


@dataclass(frozen=True, slots=True)
class _Mount:
    source: _Location
    point: PurePosixPath


def _mounts(pid: int | str) -> Iterator[_Mount]:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "mountinfo").read_bytes().splitlines():
            _, _, device, path, point, *_ = os.fsdecode(line).split(" ")
            yield _Mount(_Location(device, _unescaped(path)), _unescaped(point))


def _unescaped(path: str) -> PurePosixPath:
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path))


def _is_sandbox_of(pid: int, place: _Location) -> bool:
    """Return whether a process is bwrap, in a mount namespace with a workspace below `place`.

    A command cannot mount, so it cannot imitate this.
    """
    with contextlib.suppress(OSError):
        if (_PROC / str(pid) / "comm").read_text() == "bwrap\n":
            return any(
                mount.point == PurePosixPath(WORKSPACE)
                and mount.source.device == place.device
                and mount.source.path.is_relative_to(place.path)
                for mount in _mounts(pid)
            )
    return False
