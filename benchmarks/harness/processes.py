"""CPU time and memory of processes with their descendants, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.system import descendants

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Pids = Mapping[str, int]
"""The processes of a measured system by name."""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, including its running and ended descendants.

    The kernel counts in ticks of 10 ms, so an interval should be seconds long. The time of a descendant that
    ends without being waited for is lost.
    """
    return _cpu_s((pid, *descendants(pid)))


def cpu_by_service(pids: Pids) -> dict[str, float]:
    """Return the CPU seconds of each service; processes of one service are added up."""
    found: dict[str, float] = {}
    for name, family in process_trees(pids).items():
        service = service_of(name)
        found[service] = found.get(service, 0.0) + _cpu_s(family)
    return found


def service_of(name: str) -> str:
    """Return the service of a process: `agent` for `agent-2`."""
    return name.rstrip("-0123456789")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of processes in MiB."""

    resident: float
    """Resident memory; a shared page counts in each process."""
    proportional: float
    """A page that n processes share counts as 1/n."""


def memory(pids: Pids) -> Memory:
    """Return the memory of all processes with their descendants."""
    return _memory(pid for family in process_trees(pids).values() for pid in family)


def process_trees(pids: Pids) -> dict[str, list[int]]:
    """Return each process with its descendants, without the other named processes and their descendants."""
    named = set(pids.values())
    found: dict[str, list[int]] = {}
    for name, pid in pids.items():
        below = descendants(pid)
        others = {one for other in named & set(below) for one in (other, *descendants(other))}
        found[name] = [pid, *(one for one in below if one not in others)]
    return found


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_S


def _memory(pids: Iterable[int]) -> Memory:
    parts = [_rollup(pid) for pid in pids]
    return Memory(sum(part.resident for part in parts), sum(part.proportional for part in parts))


def _ticks(pid: int) -> int:
    try:
        # The program's name may contain spaces and parentheses; the fields after its last `)` do not.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    # utime, stime, and the same of all descendants that were waited for: fields 14 to 17 of proc_pid_stat(5).
    return sum(int(field) for field in fields[11:15])


def _rollup(pid: int) -> Memory:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return Memory(0.0, 0.0)
    sizes = {
        name: int(size.split()[0]) / 1024 for name, _, size in (line.partition(":") for line in lines[1:])
    }
    return Memory(sizes.get("Rss", 0.0), sizes.get("Pss", 0.0))
