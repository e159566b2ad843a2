"""Which runner gets the next workspace."""

from __future__ import annotations

import random
from collections.abc import Iterable

from banksman.bus.kv import Entry
from banksman.contracts.calls import RunnerLease


class Spread:
    """The least loaded runner, as one process sees it.

    A runner tells its load once a second. What this process has placed since counts as well: a burst of new
    conversations would all go to the runner that was idle a moment ago.
    """

    def __init__(self) -> None:
        self._placed: dict[str, tuple[int, int]] = {}
        """By runner: the revision of the lease that was seen, and how many were placed since."""

    def choose(self, leases: Iterable[Entry[RunnerLease]]) -> RunnerLease | None:
        """Any of those with the least load; None when no runner takes workspaces."""
        fit = [entry for entry in leases if _takes_workspaces(entry)]
        if not fit:
            return None
        loads = {entry.key: entry.value.load + self._since(entry) for entry in fit}
        least = min(loads.values())
        return random.choice([entry.value for entry in fit if loads[entry.key] == least])

    def placed(self, runner: str) -> None:
        """Note that a runner was given a workspace."""
        revision, count = self._placed.get(runner, (0, 0))
        self._placed[runner] = (revision, count + 1)

    def _since(self, entry: Entry[RunnerLease]) -> int:
        revision, count = self._placed.get(entry.key, (0, 0))
        if revision != entry.revision:
            count = 0
            self._placed[entry.key] = (entry.revision, 0)
        return count


def _takes_workspaces(entry: Entry[RunnerLease]) -> bool:
    return "." not in entry.key and entry.value.serving and entry.value.workspaces
