"""Kernel limits for all processes of a call together, if a cgroup v2 is delegated to the runner.

https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox.processes import descendants

NEEDED = frozenset({"memory", "pids"})
_WANTED = ("memory", "pids", "cpu")
_RUNNER = "banksman-runner"
_SPAWN_PROCESSES = 4
"""Processes of bwrap itself, which count against `pids.max`."""
_CPU_PERIOD_US = 100_000
_END_WAIT_S = 5.0
_POLL_S = 0.005


class NotDelegated(Exception):
    """There is no cgroup v2 that the runner may divide; the message states why."""


@dataclass(frozen=True, slots=True)
class CallCgroup:
    """The cgroup of one call."""

    directory: Path

    def open(self) -> int:
        """Open `cgroup.procs`. A process that writes `0` to it joins the cgroup, as do its later children."""
        return os.open(self.directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def end(self) -> None:
        """Kill all processes in the cgroup, wait for their end, and remove the cgroup.

        Blocks for at most five seconds; the next start of the runner removes a cgroup that is left.
        """
        with contextlib.suppress(OSError):
            _write(self.directory / "cgroup.kill", "1")
        deadline = time.monotonic() + _END_WAIT_S
        while time.monotonic() < deadline:
            try:
                self.directory.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(_POLL_S)
            else:
                return


class CallCgroups:
    """Creates a cgroup for each call, below one directory that only the runner uses."""

    def __init__(self, directory: Path, controllers: frozenset[str]) -> None:
        self.directory = directory
        self.controllers = controllers
        """The controllers that limit each call."""
        self._last = 0

    def create(self, limits: SandboxLimits) -> CallCgroup:
        """Create an empty cgroup with the limits of one call.

        Raises:
            OSError: the kernel refuses it.
        """
        self._last += 1
        call = CallCgroup(self.directory / f"call-{self._last}")
        call.directory.mkdir()
        for name, value in _limits(limits):
            if name.partition(".")[0] in self.controllers:
                # A kernel without swap has no memory.swap.max.
                with contextlib.suppress(FileNotFoundError):
                    _write(call.directory / name, value)
        return call


def examine(*, needed: frozenset[str] = NEEDED) -> tuple[Path, frozenset[str]]:
    """Return the cgroup that this process may divide, and its usable controllers. Changes nothing.

    Raises:
        NotDelegated: the own cgroup is not v2, is not writable, lacks a controller, or is shared.
    """
    try:
        own = _own()
        available = frozenset((own / "cgroup.controllers").read_text().split())
        if missing := needed - available:
            raise NotDelegated(f"{own} has no controller {' and no '.join(sorted(missing))}")
        if not os.access(own, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
            raise NotDelegated(f"{own} does not belong to this user")
        if _is_shared(own):
            raise NotDelegated(f"{own} has processes that do not belong to the runner")
    except OSError as error:
        raise NotDelegated(str(error)) from error
    return own, needed | (available & frozenset(_WANTED))


def delegated(root: Path, *, needed: frozenset[str] = NEEDED) -> CallCgroups:
    """Divide the runner's own cgroup into one part for the runner and one for the calls of `root`.

    The caller has claimed `root`: processes that an earlier runner left in the part of the calls are killed.

    Raises:
        NotDelegated: as `examine`, or the kernel refuses a step.
    """
    own, controllers = examine(needed=needed)
    try:
        return _divided(own, root, controllers)
    except OSError as error:
        raise NotDelegated(f"{own}: {error.strerror}") from error


def _divided(own: Path, root: Path, controllers: frozenset[str]) -> CallCgroups:
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    calls = own / f"banksman-calls-{name}"
    calls.mkdir(exist_ok=True)
    for left in calls.glob("call-*"):
        CallCgroup(left).end()
    _move_members(own)
    for directory in (own, calls):
        _write(directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))
    return CallCgroups(calls, controllers)


def _own() -> Path:
    """Return the directory of this process's cgroup v2, or its parent if the cgroup is already divided."""
    path = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if path is None or not kind.startswith("cgroup2 "):
            continue
        _, _, _, mounted, point, *_ = fields.split(" ")
        below = os.path.relpath(path[1], mounted)
        if not below.startswith(".."):
            directory = Path(point) / below
            return directory.parent if directory.name == _RUNNER else directory
    raise NotDelegated("no cgroup v2 is mounted")


def _is_shared(own: Path) -> bool:
    """Return whether dividing the cgroup would move processes that do not belong to the runner.

    In a container, all processes belong to it. The root cgroup, which has no `cgroup.type`, need not be
    empty.
    """
    if not (own / "cgroup.type").exists() or _in_container():
        return False
    return bool(_members(own) - set(descendants(os.getpid())))


def _in_container() -> bool:
    """Return whether the own cgroup is the root of a cgroup namespace."""
    path = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    return path is not None and path[1] in ("/", f"/{_RUNNER}")


def _members(own: Path) -> set[int]:
    return {int(pid) for pid in (own / "cgroup.procs").read_text().split()}


def _move_members(own: Path) -> None:
    """Move the processes of the cgroup into a child: only a cgroup without processes may enable controllers.

    See "no internal process constraint" in cgroups(7).
    """
    if not (own / "cgroup.type").exists():
        return
    (own / _RUNNER).mkdir(exist_ok=True)
    for pid in _members(own):
        with contextlib.suppress(ProcessLookupError):
            _write(own / _RUNNER / "cgroup.procs", str(pid))


def _limits(limits: SandboxLimits) -> tuple[tuple[str, str], ...]:
    cpu = "max" if limits.cpus is None else str(round(limits.cpus * _CPU_PERIOD_US))
    return (
        ("memory.max", str(limits.memory_bytes)),
        ("memory.swap.max", "0"),
        ("pids.max", str(limits.max_processes + _SPAWN_PROCESSES)),
        ("cpu.max", f"{cpu} {_CPU_PERIOD_US}"),
    )


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
