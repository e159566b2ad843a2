"""The logs that are known to be damaged: found by agents, known to every service, cleared by an operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import DAMAGED
from banksman.bus.watch import BucketView
from banksman.contracts.integrity import DamagedLog

logger = logging.getLogger(__name__)

ALL = "all"
"""Key of what is wrong with all logs together."""
SHOWN = 5
"""Logs that a readiness warning names; the others it counts."""

OnFound = Callable[[str, str], None]
"""Told tenant and conversation of a log that was found damaged; must not block."""


class DamagedLogs:
    """Knows the damaged logs. As a context manager it is kept up to date."""

    def __init__(self, bus: Bus, *, on_found: OnFound | None = None) -> None:
        """Describe it.

        Args:
            bus: A connection that may read the bucket; who reports must be allowed to write it.
            on_found: Told of each log that is damaged now, once.
        """
        self._bucket = Bucket(bus, DAMAGED, DamagedLog)
        self._view = BucketView(self._bucket, on_change=self._changed)
        self.on_found = on_found

    def problem(self, tenant: str, conversation_id: str) -> str | None:
        """What is wrong with a log; None when nothing is known to be."""
        entry = self._view.get(key_of(tenant, conversation_id))
        return self.of_all if entry is None else entry.value.problem

    def check(self, tenant: str, conversation_id: str) -> None:
        """Refuse a log that is damaged.

        Raises:
            LogDamaged: it is.
        """
        if problem := self.problem(tenant, conversation_id):
            raise LogDamaged(tenant, conversation_id, problem)

    @property
    def of_all(self) -> str | None:
        """What is wrong with all logs together; None when they are not."""
        entry = self._view.get(ALL)
        return None if entry is None else entry.value.problem

    @property
    def logs(self) -> list[DamagedLog]:
        """Every damaged log, by tenant and conversation."""
        return [entry.value for entry in self._view.entries() if entry.key != ALL]

    async def unready(self) -> str | None:
        """What keeps a process from being ready: that all logs are damaged."""
        return self.of_all

    async def warning(self) -> str | None:
        """One sentence about the damaged logs; None when there are none."""
        found = self.logs
        if not found:
            return None
        named = "; ".join(f"{log.tenant}/{log.conversation_id}: {log.problem}" for log in found[:SHOWN])
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{len(found)} damaged: {named}{more}. `banksman check` says what to do"

    async def report(self, tenant: str, conversation_id: str, problem: str) -> LogDamaged:
        """Have every service know that a log is damaged; returns what to raise.

        Raises:
            Unavailable, Overloaded: it could not be stored.
        """
        await self.put(found_now(tenant, conversation_id, problem))
        return LogDamaged(tenant, conversation_id, problem)

    async def put(self, damaged: DamagedLog) -> None:
        """Store a finding, unless one is stored of the same log.

        Raises:
            Unavailable, Overloaded: it could not be stored.
        """
        key = key_of(damaged.tenant, damaged.conversation_id)
        if await self._bucket.create(key, damaged) is not None:
            logger.error("the logs: %s is damaged: %s", key, damaged.problem)

    async def clear(self, tenant: str, conversation_id: str) -> None:
        """Let a log be gone on in again, or forget it: it was mended, given up, or deleted."""
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
    """A finding of this moment; of all logs together when no conversation is named."""
    now = datetime.now(UTC)
    return DamagedLog(tenant=tenant, conversation_id=conversation_id, problem=problem, found_at=now)


def key_of(tenant: str, conversation_id: str) -> str:
    """Where a finding is kept."""
    return f"{tenant}.{conversation_id}" if conversation_id else ALL
