"""Limits of the kernel on all processes of a call together, where a cgroup v2 was delegated to the runner.

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
"""What bwrap itself takes of `pids.max`."""
_CPU_PERIOD_US = 100_000
_END_WAIT_S = 5.0
_POLL_S = 0.005


class NotDelegated(Exception):
    """There is no cgroup v2 that the runner may divide; the message says why."""


@dataclass(frozen=True, slots=True)
class CallCgroup:
    """The cgroup of one call."""

    directory: Path

    def open(self) -> int:
        """A descriptor; a process that writes `0` to it is in the cgroup, and with it all that it starts."""
        return os.open(self.directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def end(self) -> None:
        """Kill whatever is in it, wait for the end of that, and remove it.

        Blocks for five seconds at most; what the kernel has not ended by then is left to the next start.
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
    """Makes a cgroup for each call, below one directory that is the runner's alone."""

    def __init__(self, directory: Path, controllers: frozenset[str]) -> None:
        self.directory = directory
        self.controllers = controllers
        """Those that limit each call."""
        self._last = 0

    def create(self, limits: SandboxLimits) -> CallCgroup:
        """An empty cgroup with the limits of one call.

        Raises:
            OSError: when the kernel refuses it.
        """
        self._last += 1
        call = CallCgroup(self.directory / f"call-{self._last}")
        call.directory.mkdir()
        for name, value in _limits(limits):
            if name.partition(".")[0] in self.controllers:
                # Some kernels are built without swap.
                with contextlib.suppress(FileNotFoundError):
                    _write(call.directory / name, value)
        return call


def examine(*, needed: frozenset[str] = NEEDED) -> tuple[Path, frozenset[str]]:
    """The cgroup that this process may divide, and the controllers for it; changes nothing.

    Raises:
        NotDelegated: when the own cgroup is no v2, may not be written, lacks a controller, or is shared.
    """
    try:
        own = _own()
        available = frozenset((own / "cgroup.controllers").read_text().split())
        if missing := needed - available:
            raise NotDelegated(f"{own} has no controller {' and no '.join(sorted(missing))}")
        if not os.access(own, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
            raise NotDelegated(f"{own} is not this user's")
        if _is_shared(own):
            raise NotDelegated(f"{own} has other processes than the runner's")
    except OSError as error:
        raise NotDelegated(str(error)) from error
    return own, needed | (available & frozenset(_WANTED))


def delegated(root: Path, *, needed: frozenset[str] = NEEDED) -> CallCgroups:
    """Divide the runner's own cgroup: one part for the runner, one for the calls in workspaces of `root`.

    For the process that holds `root`: what an earlier one left running in its part is killed.

    Raises:
        NotDelegated: as `examine`, or when the kernel refuses a step.
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
    _make_room(own)
    for directory in (own, calls):
        _write(directory / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))
    return CallCgroups(calls, controllers)


def _own() -> Path:
    """The directory of the cgroup v2 that this process is in, or of the whole that it is a part of."""
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
    """Whether dividing the cgroup would move processes that are not the runner's.

    In a container all of them belong to it. Only the root has no `cgroup.type`, and need not be emptied.
    """
    if not (own / "cgroup.type").exists() or _in_container():
        return False
    return bool(_members(own) - set(descendants(os.getpid())))


def _in_container() -> bool:
    """Whether the own cgroup is the top of a cgroup namespace."""
    path = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    return path is not None and path[1] in ("/", f"/{_RUNNER}")


def _members(own: Path) -> set[int]:
    return {int(pid) for pid in (own / "cgroup.procs").read_text().split()}


def _make_room(own: Path) -> None:
    """Move who is in the cgroup into a part of it: only one without processes may divide its resources."""
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
