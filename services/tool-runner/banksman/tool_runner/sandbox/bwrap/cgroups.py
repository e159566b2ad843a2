"""Kernel limits for all processes of a call together, in cgroups below the runner's own one.

The runner may divide its own cgroup if it is writable and not shared.

Version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html
Version 1, with a hierarchy per controller: https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from banksman.tool_runner.sandbox.bwrap.processes import descendants, kill_process
from banksman.tool_runner.settings import SandboxLimits

NEEDED = frozenset({"memory", "pids"})
_NEEDED_V1 = frozenset({"memory"})
"""In version 1 a controller can be missing by itself; RLIMIT_NPROC also limits the processes."""
_WANTED = ("memory", "pids", "cpu")
RUNNER = "banksman-runner"
"""The child cgroup of version 2 with the processes of the runner itself."""
_CALLS = "banksman-calls-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SPAWN_PROCESSES = 5
"""Number of processes of the starter and of bwrap itself, which count against `pids.max`."""
_MAX_LEFT_BYTES = 8 * 1024 * 1024
"""Maximum bytes that earlier calls left in a reused cgroup, such as cached pages of their files."""
_CPU_PERIOD_US = 100_000
_END_WAIT_S = 5.0
_POLL_S = 0.005
_OOM_COUNTERS = ("memory.events", "memory.oom_control")
"""Files with a line `oom_kill {number}`, of version 2 and of version 1."""
_CHARGED = ("memory.current", "memory.usage_in_bytes")
"""Files with the memory of a cgroup in bytes, of version 2 and of version 1."""


class NotDelegated(Exception):
    """The runner may divide no cgroup; the message states why."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    directory: Path
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Delegation:
    version: Literal[1, 2]
    hierarchies: tuple[Hierarchy, ...]
    """The runner's own cgroup; in version 1, one cgroup for each controller."""

    def __str__(self) -> str:
        parts = (f"{', '.join(sorted(own.controllers))} at {own.directory}" for own in self.hierarchies)
        return f"cgroup v{self.version}: {'; '.join(parts)}"


def examine() -> Delegation:
    """Return the cgroups that this process may divide: version 2 if possible, else version 1. Read-only."""
    try:
        return examine_v2()
    except NotDelegated as reason:
        try:
            return examine_v1()
        except NotDelegated as older:
            raise NotDelegated(f"{reason}; {older}") from None


def examine_v2(needed: frozenset[str] = NEEDED) -> Delegation:
    own = _own_v2()
    try:
        available = frozenset((own / "cgroup.controllers").read_text().split())
        if missing := needed - available:
            raise NotDelegated(f"{own} has no controller {' and no '.join(sorted(missing))}")
        if not os.access(own, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
            raise NotDelegated(f"{own} does not belong to this user")
        if _is_shared(own):
            raise NotDelegated(f"{own} has processes that do not belong to the runner")
    except OSError as error:
        raise NotDelegated(str(error)) from error
    return Delegation(2, (Hierarchy(own, needed | (available & frozenset(_WANTED))),))


def examine_v1() -> Delegation:
    by_place: dict[Path, set[str]] = {}
    for controller in _WANTED:
        place = _own("cgroup", controller)
        if place is not None and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
            by_place.setdefault(place, set()).add(controller)
    usable = frozenset(name for names in by_place.values() for name in names)
    if missing := _NEEDED_V1 - usable:
        raise NotDelegated(f"no writable cgroup v1 with the controller {' and '.join(sorted(missing))}")
    return Delegation(1, tuple(Hierarchy(place, frozenset(names)) for place, names in by_place.items()))


def _own_v2() -> Path:
    """Return the directory of this process's cgroup v2, or its parent if the cgroup is already divided."""
    directory = _own("cgroup2", "")
    if directory is None:
        raise NotDelegated("no cgroup v2 is mounted")
    return directory.parent if directory.name == RUNNER else directory


def _own(kind: Literal["cgroup", "cgroup2"], controller: str) -> Path | None:
    path = _own_path(controller)
    for options, mounted, point in _mounts(kind):
        if path is None or (controller and controller not in options):
            continue
        below = os.path.relpath(path, mounted)
        if not below.startswith(".."):
            return Path(point) / below
    return None


def _own_path(controller: str) -> str | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _mounts(kind: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield the options, the mounted directory and the mount point of each mount of a kind of file system."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if source.startswith(f"{kind} "):
            _, _, _, mounted, point, *_ = fields.split(" ")
            yield source.rpartition(" ")[2].split(","), mounted, point


def _is_shared(own: Path) -> bool:
    """Return whether dividing the cgroup would move processes that do not belong to the runner.

    In a container, all processes belong to it. The root cgroup, which has no `cgroup.type`, need not be
    empty.
    """
    if not (own / "cgroup.type").exists() or _in_container():
        return False
    return bool(members(own) - set(descendants(os.getpid())))


def _in_container() -> bool:
    return _own_path("") in ("/", f"/{RUNNER}")


def members(own: Path) -> set[int]:
    return {int(pid) for pid in (own / "cgroup.procs").read_text().split()}


@dataclass(frozen=True, slots=True)
class CallCgroup:
    """The cgroup of a starter, which limits one call after another."""

    directories: tuple[Path, ...]
    _existing: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict[tuple[str, ...], tuple[str, ...]], repr=False
    )

    def open(self) -> list[int]:
        """Open each `cgroup.procs`. A process that writes `0` to it joins, as do its later children."""
        return [os.open(each / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for each in self.directories]

    def exceeded_memory(self) -> bool:
        for counter in self._files(*_OOM_COUNTERS):
            with contextlib.suppress(OSError):
                counted = re.search(rb"^oom_kill (\d+)$", _content(counter), re.MULTILINE)
                if counted is not None and int(counted[1]) > 0:
                    return True
        return False

    def reusable(self, starter: int) -> bool:
        try:
            # Processes join and leave all hierarchies together.
            if _content(str(self.directories[0] / "cgroup.procs")).split() != [b"%d" % starter]:
                return False
            left = sum(int(_content(charged)) for charged in self._files(*_CHARGED))
        except OSError:
            return False
        return left <= _MAX_LEFT_BYTES and not self.exceeded_memory()

    def _files(self, *names: str) -> tuple[str, ...]:
        """Return the named files that exist, which depends on version and controllers."""
        if names not in self._existing:
            paths = (directory / name for directory in self.directories for name in names)
            self._existing[names] = tuple(str(path) for path in paths if path.exists())
        return self._existing[names]

    def end(self) -> None:
        """Kill all processes in the cgroup and remove it. Blocks for at most five seconds.

        The next start of the runner removes a cgroup that is left.
        """
        deadline = time.monotonic() + _END_WAIT_S
        left = list(self.directories)
        while left and time.monotonic() < deadline:
            left = [directory for directory in left if not _removed(directory)]
            if left:
                for directory in left:
                    _kill_members(directory)
                time.sleep(_POLL_S)


@dataclass
class CallCgroups:
    hierarchies: tuple[Hierarchy, ...]
    locks: contextlib.ExitStack
    """Holds the locks of the directories."""
    _last: int = 0

    def create(self, limits: SandboxLimits) -> CallCgroup:
        self._last += 1
        call = CallCgroup(tuple(each.directory / f"call-{self._last}" for each in self.hierarchies))
        for hierarchy, directory in zip(self.hierarchies, call.directories, strict=True):
            directory.mkdir()
            for name, value in _limits(limits):
                # Each file exists in one version only, and a kernel without swap lacks the files of swap.
                if name.partition(".")[0] in hierarchy.controllers and (directory / name).exists():
                    (directory / name).write_text(value)
        return call

    def close(self) -> None:
        for hierarchy in self.hierarchies:
            _removed(hierarchy.directory)
        self.locks.close()


def divided(own: Delegation, root: Path) -> CallCgroups:
    """Create the directories for the calls of `root`; of version 2, also one for the runner itself.

    The caller has claimed `root`: processes that an earlier runner left in the part of the calls are killed.
    Raises `NotDelegated` if the kernel refuses a step.
    """
    name = f"{_CALLS}{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}"
    with contextlib.ExitStack() as on_failure:
        locks = on_failure.enter_context(contextlib.ExitStack())
        try:
            parts = tuple(_divided(own, hierarchy, name, locks) for hierarchy in own.hierarchies)
        except OSError as error:
            raise NotDelegated(f"{own}: {error.strerror}") from error
        on_failure.pop_all()
        return CallCgroups(parts, locks)


def _divided(own: Delegation, hierarchy: Hierarchy, name: str, locks: contextlib.ExitStack) -> Hierarchy:
    calls = hierarchy.directory / name
    for left in hierarchy.directory.glob(f"{_CALLS}*"):
        if left != calls:
            _remove_abandoned(left)
    locks.callback(os.close, _locked(calls))
    _end_calls(calls)
    if own.version == 2:
        _move_members(hierarchy.directory)
        for directory in (hierarchy.directory, calls):
            names = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
            (directory / "cgroup.subtree_control").write_text(names)
    return Hierarchy(calls, hierarchy.controllers)


def _locked(calls: Path) -> int:
    """Create the directory unless it exists, and return its descriptor with a shared lock.

    A runner that starts at the same time may take it for abandoned, and remove it, until it is locked.
    """
    while True:
        calls.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as otherwise:
            lock = os.open(calls, _DIRECTORY)
            otherwise.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.fstat(lock).st_ino == calls.stat().st_ino:
                otherwise.pop_all()
                return lock


def _remove_abandoned(calls: Path) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as owner:
        lock = os.open(calls, _DIRECTORY)
        owner.callback(os.close, lock)
        # The kernel releases the lock of a runner that was killed.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _end_calls(calls)
        _removed(calls)


def _end_calls(calls: Path) -> None:
    for left in calls.glob("call-*"):
        CallCgroup((left,)).end()


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill_members(directory: Path) -> None:
    with contextlib.suppress(OSError):
        if (directory / "cgroup.kill").exists():
            (directory / "cgroup.kill").write_text("1")
            return
        for pid in members(directory):
            with contextlib.ExitStack() as opened:
                kill_process(pid, lambda pid: pid in members(directory), opened)


def _move_members(own: Path) -> None:
    """Move the processes of the cgroup into a child: only a cgroup without processes may enable controllers.

    See "no internal process constraint" in cgroups(7).
    """
    if not (own / "cgroup.type").exists():
        return
    (own / RUNNER).mkdir(exist_ok=True)
    for pid in members(own):
        with contextlib.suppress(ProcessLookupError):
            (own / RUNNER / "cgroup.procs").write_text(str(pid))


def _limits(limits: SandboxLimits) -> tuple[tuple[str, str], ...]:
    """Return the files of both versions and their contents, in the order in which they are written."""
    memory = str(limits.memory_bytes)
    quota_us = None if limits.cpus is None else round(limits.cpus * _CPU_PERIOD_US)
    return (
        ("memory.max", memory),
        ("memory.swap.max", "0"),
        # All processes of the call end together, as when the watchdog finds the excess.
        ("memory.oom.group", "1"),
        ("memory.limit_in_bytes", memory),
        # Memory and swap together, which may not be less than the memory alone.
        ("memory.memsw.limit_in_bytes", memory),
        ("pids.max", str(limits.max_processes + _SPAWN_PROCESSES)),
        ("cpu.max", f"{'max' if quota_us is None else quota_us} {_CPU_PERIOD_US}"),
        ("cpu.cfs_period_us", str(_CPU_PERIOD_US)),
        ("cpu.cfs_quota_us", str(-1 if quota_us is None else quota_us)),
    )


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
