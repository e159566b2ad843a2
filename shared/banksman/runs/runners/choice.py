"""The choice of the process for the next call or workspace: the least loaded one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from banksman.bus.storage.kv import Entry
from banksman.contracts.calls import RunnerLease
from banksman.runs.ports import Placement


@dataclass(frozen=True, slots=True)
class ToolServerProcess:
    """One live process of a tool server. Each has its own lease, and any of them may take a call."""

    placement: Placement
    """The server, and the epoch of the process, which no other process ever has."""
    tenant: str | None
    """The tenant that the server serves; None for a server that serves all tenants."""
    load: int
    """Number of running and waiting calls."""
    serving: bool
    """False if it accepts no more calls."""

    @classmethod
    def of(cls, entry: Entry[RunnerLease]) -> Self | None:
        """Return the process that holds a lease; None for the lease of a runner, or an unknown key.

        The identity comes from the key alone, because a tenant may write anything into the value.
        """
        match entry.key.split("."):
            case [server, epoch] if epoch.isdecimal():
                tenant = None
            case [server, tenant, epoch] if epoch.isdecimal():
                pass
            case _:
                return None
        return cls(Placement(server, int(epoch)), tenant, entry.value.load, entry.value.serving)


def least_loaded(processes: Iterable[ToolServerProcess]) -> Placement | None:
    serving = [process for process in processes if process.serving]
    if not serving:
        return None
    least = min(process.load for process in serving)
    return random.choice([process.placement for process in serving if process.load == least])


class RunnerLoads:
    """The loads of the runners, as known to this process.

    A runner reports its load once a second. Workspaces that this process has placed since then count too.
    Otherwise a burst of new conversations would all go to the runner that was idle a moment ago.
    """

    def __init__(self) -> None:
        self._placed: dict[str, tuple[int, int]] = {}
        """By runner: the last seen revision of its lease, and the number of workspaces placed since."""

    def least_loaded(self, leases: Iterable[Entry[RunnerLease]]) -> RunnerLease | None:
        """Return one of the runners with the least load; None when none accepts workspaces."""
        accepting = [entry for entry in leases if _accepts_workspaces(entry)]
        if not accepting:
            return None
        loads = {entry.key: entry.value.load + self._placed_since(entry) for entry in accepting}
        least = min(loads.values())
        return random.choice([entry.value for entry in accepting if loads[entry.key] == least])

    def add(self, runner: str) -> None:
        revision, count = self._placed.get(runner, (0, 0))
        self._placed[runner] = (revision, count + 1)

    def _placed_since(self, entry: Entry[RunnerLease]) -> int:
        revision, count = self._placed.get(entry.key, (0, 0))
        if revision != entry.revision:
            count = 0
            self._placed[entry.key] = (entry.revision, 0)
        return count


def _accepts_workspaces(entry: Entry[RunnerLease]) -> bool:
    # The lease key of a runner has no dot; the keys of tool servers have one.
    return "." not in entry.key and entry.value.serving and entry.value.workspaces
