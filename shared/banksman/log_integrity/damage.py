"""Damaged logs: reported by agents, known to all services, cleared by an operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.names import DAMAGED
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.administration import DamagedLog

logger = logging.getLogger(__name__)

ALL = "all"
"""Key of a problem that concerns all logs together."""
SHOWN = 5
"""Number of logs that a readiness warning names; others are only counted."""

OnFound = Callable[[str, str], None]
"""Receives tenant and conversation of a damaged log. It must not block."""


class DamagedLogs:
    """The damaged logs. Within its context, the view follows changes by other processes."""

    def __init__(self, bus: Bus, *, on_found: OnFound | None = None) -> None:
        """Create the view; `on_found` is called once for each log that becomes damaged."""
        self._bucket = Bucket(bus, DAMAGED, DamagedLog)
        self._view = BucketView(self._bucket, on_change=self._changed)
        self.on_found = on_found

    def problem(self, tenant: str, conversation_id: str) -> str | None:
        entry = self._view.get(key_of(tenant, conversation_id))
        return self.of_all if entry is None else entry.value.problem

    def check(self, tenant: str, conversation_id: str) -> None:
        """Raise `LogDamaged` if the log, or all logs together, are damaged."""
        if problem := self.problem(tenant, conversation_id):
            raise LogDamaged(conversation_id, problem)

    @property
    def of_all(self) -> str | None:
        """The problem of all logs together, or None."""
        entry = self._view.get(ALL)
        return None if entry is None else entry.value.problem

    @property
    def logs(self) -> list[DamagedLog]:
        return [entry.value for entry in self._view.entries() if entry.key != ALL]

    async def unready(self) -> str | None:
        """Return why a process is not ready: a problem of all logs together; otherwise None."""
        return self.of_all

    async def warning(self) -> str | None:
        found = self.logs
        if not found:
            return None
        named = "; ".join(f"{log.tenant}/{log.conversation_id}: {log.problem}" for log in found[:SHOWN])
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{len(found)} damaged: {named}{more}. `banksman check` lists them with the remedy"

    async def report(self, tenant: str, conversation_id: str, problem: str) -> LogDamaged:
        """Report a damaged log to all services and return the error to raise."""
        await self.put(found_now(tenant, conversation_id, problem))
        return LogDamaged(conversation_id, problem)

    async def put(self, damaged: DamagedLog) -> None:
        """Store a report, unless the log has one."""
        key = key_of(damaged.tenant, damaged.conversation_id)
        if await self._bucket.create(key, damaged) is not None:
            logger.error("log %s is damaged: %s", key, damaged.problem)

    async def clear(self, tenant: str, conversation_id: str) -> None:
        """Remove the report of a log that was repaired, accepted or deleted."""
        if await self._bucket.get(key_of(tenant, conversation_id)) is not None:
            await self._bucket.delete(key_of(tenant, conversation_id))

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._view.__aexit__(kind, error, trace)

    def _changed(self, key: str, entry: Entry[DamagedLog] | None) -> None:
        if entry is not None and key != ALL and self.on_found is not None:
            self.on_found(entry.value.tenant, entry.value.conversation_id)


def found_now(tenant: str, conversation_id: str, problem: str) -> DamagedLog:
    """Return a report with the current time; for all logs together if the conversation is empty."""
    now = datetime.now(UTC)
    return DamagedLog(tenant=tenant, conversation_id=conversation_id, problem=problem, found_at=now)


def key_of(tenant: str, conversation_id: str) -> str:
    return f"{tenant}.{conversation_id}" if conversation_id else ALL
