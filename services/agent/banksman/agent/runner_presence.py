"""Ends the leases of processes whose connections are closed, long before they expire.

A lease outlives a broker that is silent for seconds, so its time is long. A killed process is different
information from a silent one: the kernel closes its connection, and the server then reports that no process
serves its subjects. A frozen or partitioned process keeps its connection, and its lease until that expires.
See docs/decisions/0020.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, WrongLastSequence
from banksman.bus.kv import Entry
from banksman.bus.leases import end_lease
from banksman.bus.settings import Replicas
from banksman.contracts import subjects
from banksman.contracts.calls import CancelCall, RunnerLease
from banksman.contracts.errors import Forbidden, Unavailable
from banksman.runs.placement import Placements
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

OVERDUE_S = 1.2
"""Seconds without a renewal or a reply to a check after which the connection of a holder is checked. A holder
that executes calls renews every second and is not checked; an idle one is, once between two renewals."""
CHECK_S = 0.25
"""Seconds between checks."""
CLOSED_S: Mapping[Replicas, float] = {1: 1.0, 3: 6.0}
"""Seconds for which a connection must be found closed, by number of replicas. A process reconnects to one
server within a second; with three, it may first try the ones that are away."""
RECONNECT_S = 4.0
"""Seconds after a reconnect of this process without checks: a broker that was restarted closed all
connections, and the others reconnect too."""
PROBE_S = 0.5
"""Seconds to wait for the reply to a check. Without any reply the connection counts as open."""
CONCURRENT = 64
"""Checks at a time."""

_NOBODY = "presence"
"""Token in place of a tenant and an attempt: a cancel of an unknown attempt has no effect."""


class RunnerPresence:
    """Checks the holders of overdue leases; as a context manager it does so while the block runs."""

    def __init__(self, bus: Bus, placements: Placements) -> None:
        self._bus = bus
        self._placements = placements
        self._closed_since: dict[tuple[str, int], float] = {}
        """When the connection of a holder was first found closed, by the key and revision of its lease."""
        self._heard_at: dict[tuple[str, int], float] = {}
        """When a holder last replied to a check, by the key and revision of its lease."""
        self._connected_at = float("-inf")
        self._task: BackgroundTask | None = None

    async def __aenter__(self) -> Self:
        self._reconnected()
        self._remove = self._bus.on_reconnect(self._reconnected)
        self._task = self._bus.background.repeat("runner-presence", self._check, wait=self._wait)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        if self._task:
            await self._task.stop()

    def _reconnected(self) -> None:
        self._connected_at = asyncio.get_running_loop().time()

    async def _wait(self) -> None:
        """Wait until the next lease can be overdue; one whose holder was not heard is checked often."""
        now = asyncio.get_running_loop().time()
        due_at = min((self._heard(entry, at) for entry, at in self._placements.renewed()), default=now)
        await asyncio.sleep(max(due_at + OVERDUE_S - now, CHECK_S))

    def _heard(self, entry: Entry[RunnerLease], renewed_at: float) -> float:
        """Return when the holder of a lease last gave a sign of life."""
        return max(renewed_at, self._heard_at.get((entry.key, entry.revision), renewed_at))

    def _overdue(self, before: float) -> list[Entry[RunnerLease]]:
        """Return the leases whose holders gave no sign of life since a time of the event loop's clock."""
        renewed = self._placements.renewed()
        current = {(entry.key, entry.revision) for entry, _ in renewed}
        self._heard_at = {lease: at for lease, at in self._heard_at.items() if lease in current}
        return [entry for entry, at in renewed if self._heard(entry, at) < before]

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        overdue = self._overdue(loop.time() - OVERDUE_S)
        if not overdue or not self._bus.connected or loop.time() < self._connected_at + RECONNECT_S:
            self._closed_since.clear()
            return
        closed: list[Entry[RunnerLease]] = []
        for start in range(0, len(overdue), CONCURRENT):
            batch = overdue[start : start + CONCURRENT]
            async with asyncio.TaskGroup() as group:
                checks = [group.create_task(self._is_closed(entry)) for entry in batch]
            closed += [entry for entry, check in zip(batch, checks, strict=True) if check.result()]
        known = self._closed_since
        # A renewal begins the count again: the process was only disconnected.
        self._closed_since = {
            (entry.key, entry.revision): known.get((entry.key, entry.revision), loop.time())
            for entry in closed
        }
        for entry in closed:
            closed_s = loop.time() - self._closed_since[entry.key, entry.revision]
            if closed_s >= CLOSED_S[self._bus.settings.replicas]:
                await self._end(entry)

    async def _is_closed(self, entry: Entry[RunnerLease]) -> bool:
        """Return whether the server reports that no process serves the subjects of a holder."""
        holder, *rest = entry.key.split(".")
        # `{server}.{tenant}.{epoch}`: the account of a tenant serves the calls of that tenant only.
        tenant = rest[0] if len(rest) == 2 else _NOBODY
        cancel = CancelCall(attempt=_NOBODY).model_dump_json().encode()
        try:
            await self._bus.request(subjects.tool_cancel(holder, tenant, _NOBODY), cancel, PROBE_S)
        except NoResponders:
            return True
        except (Unavailable, Forbidden):
            return False
        self._heard_at[entry.key, entry.revision] = asyncio.get_running_loop().time()
        return False

    async def _end(self, entry: Entry[RunnerLease]) -> None:
        try:
            await end_lease(self._bus, entry.key, entry.revision, budget_s=PROBE_S)
        except WrongLastSequence:
            return  # It was renewed, taken by the next process, or ended by another agent.
        except Unavailable as error:
            logger.warning("the lease of %s is not ended yet: %s", entry.key, error)
        else:
            logger.warning("the connection of %s is closed: its lease has been ended", entry.key)
