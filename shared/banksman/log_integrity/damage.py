"""Damaged logs: reported by agents, known to all services, cleared by an operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.names import DAMAGED
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.administration import DamagedLog

logger = logging.getLogger(__name__)

MAX_DAMAGED = 1_000
"""Number of damaged logs above which all conversations stop, because the store itself is in doubt."""
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

    @property
    def logs(self) -> dict[str, str]:
        """The problems by `{tenant}.{conversation}`."""
        return {entry.key: entry.value.problem for entry in self._view.entries()}

    def damage(self, tenant: str, conversation_id: str) -> LogDamaged | None:
        """Return the damage of a log, or of the whole store; None if none is known."""
        entry = self._view.get(f"{tenant}.{conversation_id}")
        problem = entry.value.problem if entry else self._in_doubt
        return LogDamaged(conversation_id, problem) if problem else None

    @property
    def _in_doubt(self) -> str | None:
        if len(self._view.entries()) <= MAX_DAMAGED:
            return None
        return (
            f"stream EVENTS: more than {MAX_DAMAGED} logs lost stored commits. Restore a backup, or accept "
            "the loss of all with `banksman accept --all`"
        )

    async def unready(self) -> str | None:
        """Return why a process is not ready: the whole store is in doubt; otherwise None."""
        return self._in_doubt

    async def warning(self) -> str | None:
        found = [f"{log.replace('.', '/')}: {problem}" for log, problem in self.logs.items()]
        if not found:
            return None
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        named = "; ".join(found[:SHOWN]) + more
        return f"{len(found)} damaged: {named}. `banksman check` lists them with the remedy"

    async def report(self, tenant: str, conversation_id: str, problem: str) -> LogDamaged:
        """Report a damaged log to all services and return the error to raise."""
        await self.put(f"{tenant}.{conversation_id}", problem)
        return LogDamaged(conversation_id, problem)

    async def put(self, log: str, problem: str) -> None:
        """Store a report, unless the log has one."""
        tenant, _, conversation_id = log.partition(".")
        now = datetime.now(UTC)
        report = DamagedLog(tenant=tenant, conversation_id=conversation_id, problem=problem, found_at=now)
        if await self._bucket.create(log, report) is not None:
            logger.error("log %s is damaged: %s", log, problem)

    async def clear(self, log: str) -> None:
        """Remove the report of a log that was repaired, accepted or deleted."""
        if await self._bucket.get(log) is not None:
            await self._bucket.delete(log)

    async def __aenter__(self) -> Self:
        await self._view.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._view.__aexit__(None, None, None)

    def _changed(self, key: str, entry: Entry[DamagedLog] | None) -> None:
        if entry is not None and self.on_found is not None:
            self.on_found(*key.split("."))
