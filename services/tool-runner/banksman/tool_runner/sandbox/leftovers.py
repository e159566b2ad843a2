"""Ends sandboxes of an earlier runner that was killed together with its spawner while one was starting."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from banksman.tool_runner.sandbox.recipe import WORKSPACE

_PROC = Path("/proc")


def end_leftovers(root: Path, *, wait_s: float = 5.0) -> int:
    """Kill every sandbox with a workspace below `root`, of any user and any parent.

    The caller has claimed `root` and does not use it yet.

    Returns:
        The number of killed sandboxes, when they have ended or `wait_s` seconds have passed.
    """
    place = _location(root)
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as opened:
        killed = [pidfd for pid in _sandboxes(place) if (pidfd := _killed(pid, place, opened)) is not None]
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
    """Yield the mounts in `/proc/{pid}/mountinfo`; none if the process has ended or is not readable."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "mountinfo").read_bytes().splitlines():
            _, _, device, path, point, *_ = os.fsdecode(line).split(" ")
            yield _Mount(_Location(device, _unescaped(path)), _unescaped(point))


def _unescaped(path: str) -> PurePosixPath:
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path))


def _sandboxes(place: _Location) -> list[int]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _is_sandbox_of(pid, place)]


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


def _killed(pid: int, place: _Location, opened: contextlib.ExitStack) -> int | None:
    """Kill a process and return its pidfd; None if it has ended or its id was reused."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    opened.callback(os.close, pidfd)
    # The id may have been reused before the pidfd was opened. From here, the pidfd names one process.
    if not _is_sandbox_of(pid, place):
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd
