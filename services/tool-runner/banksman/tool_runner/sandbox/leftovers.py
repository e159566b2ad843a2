"""Sandboxes that an earlier runner left, and its spawner too: both were killed while one was starting."""

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
    """Kill every sandbox with a workspace below `root`, whoever started it, as whatever user.

    For the process that holds `root` and has not begun to use it. Returns how many there were once they have
    ended, at the latest after `wait_s`.
    """
    place = _place(root)
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
class _Place:
    """A directory as every mount namespace has it."""

    device: str
    """`major:minor`."""
    path: PurePosixPath
    """Within the file system of the device."""


def _place(directory: Path) -> _Place:
    resolved = PurePosixPath(directory.resolve())
    holding = [mount for mount in _mounts("self") if resolved.is_relative_to(mount.point)]
    # Of two mounts at one place the later hides the earlier.
    mount = max(reversed(holding), key=lambda mount: len(mount.point.parts))
    return _Place(mount.source.device, mount.source.path / resolved.relative_to(mount.point))


@dataclass(frozen=True, slots=True)
class _Mount:
    source: _Place
    point: PurePosixPath


def _mounts(pid: int | str) -> Iterator[_Mount]:
    """What `/proc/{pid}/mountinfo` says; of a process that is gone or that one may not look at, nothing."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "mountinfo").read_bytes().splitlines():
            _, _, device, path, point, *_ = os.fsdecode(line).split(" ")
            yield _Mount(_Place(device, _unescaped(path)), _unescaped(point))


def _unescaped(path: str) -> PurePosixPath:
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path))


def _sandboxes(place: _Place) -> list[int]:
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _is_sandbox_of(pid, place)]


def _is_sandbox_of(pid: int, place: _Place) -> bool:
    """True for bwrap as the first process of a namespace in which a directory of `place` is the workspace.

    A command cannot mount, so it cannot look like one.
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


def _killed(pid: int, place: _Place, opened: contextlib.ExitStack) -> int | None:
    """The pidfd of a process that was killed; None when it was gone, or its number is another's by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    opened.callback(os.close, pidfd)
    if not _is_sandbox_of(pid, place):
        return None
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return pidfd
