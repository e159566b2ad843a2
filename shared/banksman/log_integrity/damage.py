"""Damaged logs: reported by agents, known to all services, cleared by an operator."""

from __future__ import annotations

import asyncio
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
RECORD = "record"
"""Key that is present while the record of the ends of logs is incomplete."""
SHOWN = 5
"""Number of logs that a readiness warning names; others are only counted."""

OnFound = Callable[[str, str], None]
"""Receives tenant and conversation of a damaged log. It must not block."""


class DamagedLogs:
    """The damaged logs. Within its context, the view follows changes by other processes."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, DAMAGED, DamagedLog)
        self._view = BucketView(self._bucket, on_change=self._changed)
        self.on_found: OnFound | None = None
        """Called once for each log that becomes damaged."""
        self.current = asyncio.Event()
        """Cleared while the logs are not checked yet since the connection to NATS was made."""
        self.current.set()

    def damage(self, tenant: str, conversation_id: str) -> LogDamaged | None:
        """Return the damage of a log, or of all logs together; None if none is known."""
        problem = self._problem(f"{tenant}.{conversation_id}") or self._problem(ALL)
        return LogDamaged(conversation_id, problem) if problem else None

    @property
    def logs(self) -> dict[str, str]:
        """The problems by `{tenant}.{conversation}`."""
        return {entry.key: entry.value.problem for entry in self._view.entries() if "." in entry.key}

    async def unready(self) -> str | None:
        """Return why a process is not ready: a problem of all logs together; otherwise None."""
        return self._problem(ALL)

    async def warning(self) -> str | None:
        found = [f"{log.replace('.', '/')}: {problem}" for log, problem in self.logs.items()]
        if not found:
            return None
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        named = "; ".join(found[:SHOWN])
        return f"{len(found)} damaged: {named}{more}. `banksman check` lists them with the remedy"

    async def incomplete(self) -> str | None:
        """Return a warning while a further loss of the end of a log would not be detected."""
        problem = self._problem(RECORD)
        return problem and f"the record of the ends of logs is incomplete: {problem}"

    async def report(self, tenant: str, conversation_id: str, problem: str) -> LogDamaged:
        """Report a damaged log to all services and return the error to raise."""
        await self.put(f"{tenant}.{conversation_id}", problem)
        return LogDamaged(conversation_id, problem)

    async def put(self, key: str, problem: str) -> None:
        """Store a report, unless the log has one."""
        tenant, _, conversation_id = key.rpartition(".")
        report = DamagedLog(
            tenant=tenant,
            conversation_id=conversation_id if tenant else "",
            problem=problem,
            found_at=datetime.now(UTC),
        )
        if await self._bucket.create(key, report) is not None:
            logger.error("log %s is damaged: %s", key, problem)

    async def clear(self, key: str) -> None:
        """Remove the report of a log that was repaired, accepted or deleted."""
        if await self._bucket.get(key) is not None:
            await self._bucket.delete(key)

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._view.__aexit__(kind, error, trace)

    def _problem(self, key: str) -> str | None:
        entry = self._view.get(key)
        return entry and entry.value.problem

    def _changed(self, key: str, entry: Entry[DamagedLog] | None) -> None:
        tenant, _, conversation_id = key.rpartition(".")
        if entry is not None and tenant and self.on_found is not None:
            self.on_found(tenant, conversation_id)
