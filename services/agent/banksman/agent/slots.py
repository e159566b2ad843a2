"""The number of runs that an agent drives at a time: bounded by memory, and by the load of the system."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import Gauge

from banksman.quotas.adaptive import AdaptiveLimit
from banksman.quotas.rates import Rarely

logger = logging.getLogger(__name__)

RUN_BYTES = 78 * 1024
"""Memory of a run that waits for its model."""
MEMORY_SHARE = 1 / 8
"""Share of the memory that all runs of an agent may take: one machine runs several processes, and the runs of
long conversations take more."""
MIN_SLOTS, MAX_SLOTS = 96, 4_000
"""Limits of the default. With more slots, the signals of running runs alone would take a tenth of a core."""
FIRST_SLOTS, LEAST_SLOTS = 64, 16
"""Slots before the load is known, and the fewest under any load."""
EXHAUSTED_PERIODS = 4
"""Periods in a row, of 0.8 s, after which slots and not the load count as the limit."""
LOG_EVERY_S = 60.0
CGROUP_LIMITS = ("memory.max", "memory.high", "memory/memory.limit_in_bytes")
"""Files with the limit of a cgroup, of version 2 and version 1."""

_EXHAUSTED = Gauge(
    "banksman_slots_exhausted",
    "1 while runs wait because all slots of the agent are used, though it has capacity.",
)


def slots_by_memory(memory: int) -> int:
    """Return the default number of slots for a process that may use so many bytes."""
    return min(MAX_SLOTS, max(MIN_SLOTS, int(memory * MEMORY_SHARE / RUN_BYTES)))


def memory_bytes(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that this process may use: that of the machine, or less in a cgroup with a limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((machine, *_cgroup_limits(root, own)))


def _cgroup_limits(root: Path, own: Path) -> Iterable[int]:
    """Yield the limits of the process's cgroup and of those that contain it."""
    inner = ""
    with suppress(OSError):
        inner = own.read_text().rpartition("0::")[2].strip().lstrip("/")
    inside = root / inner
    for directory in (inside, *(parent for parent in inside.parents if parent.is_relative_to(root))):
        for name in CGROUP_LIMITS:
            # Without a limit, a file contains `max`, or is missing.
            with suppress(OSError, ValueError):
                yield int((directory / name).read_text())


class SlotsWarning:
    """Reports that runs wait for slots although the agent could drive more."""

    def __init__(self, limit: AdaptiveLimit) -> None:
        self._limit = limit
        self._log = Rarely(LOG_EVERY_S)
        limit.on_update = self._updated

    async def problem(self) -> str | None:
        if self._limit.exhausted < EXHAUSTED_PERIODS:
            return None
        return (
            f"runs wait because all {self._limit.most} slots are used, and not because of the load:"
            " raise BANKSMAN_AGENT__SLOTS, or start another agent"
        )

    def _updated(self) -> None:
        exhausted = self._limit.exhausted >= EXHAUSTED_PERIODS
        _EXHAUSTED.set(exhausted)
        if exhausted and self._log.due():
            logger.warning("all %d slots are used and runs wait, without high load", self._limit.most)
