"""The cgroups that this process may divide: its own cgroup, if it is writable and not shared.

Version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html
Version 1, with a hierarchy per controller: https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from banksman.tool_runner.sandbox.bwrap.processes import descendants

NEEDED = frozenset({"memory", "pids"})
_NEEDED_V1 = frozenset({"memory"})
"""In version 1 a controller can be missing by itself; RLIMIT_NPROC also limits the processes."""
_WANTED = ("memory", "pids", "cpu")
RUNNER = "banksman-runner"
"""The child cgroup of version 2 with the processes of the runner itself."""


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
