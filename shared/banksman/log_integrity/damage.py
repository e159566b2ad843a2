"""Damaged logs: reported by agents, known to all services, cleared by an operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.names import DAMAGED
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts.administration import DamagedLog
from banksman.log_integrity.heads import lost_ends
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

MAX_DAMAGED = 1_000
"""Number of damaged logs above which all conversations stop, because the store itself is in doubt."""
IN_DOUBT = (
    f"stream EVENTS: more than {MAX_DAMAGED} logs lost stored commits. "
    "Restore a backup, or accept the loss of all with `banksman accept --all`"
)
SHOWN = 5
"""Number of logs that a readiness warning names; others are only counted."""
POLL_S = 0.05


class DamagedLogs(Scoped):
    """The damaged logs. Within its context, it follows what other processes report."""

    def __init__(self, bus: Bus, *, checks: bool = False) -> None:
        """`checks` compares all logs with the record of their ends, first and after each reconnect."""
        self._bus = bus
        self._bucket = Bucket(bus, DAMAGED, DamagedLog)
        self._view = BucketView(self._bucket, on_change=self._changed)
        self.on_found: Callable[[str, str], None] | None = None
        """Called with tenant and conversation of each log that becomes damaged. It must not block."""
        self.checked = asyncio.Event()
        """Cleared from a reconnect, which may follow a restart of the server, until the check has ended."""
        self._due = asyncio.Event()
        self._checks = checks
        if not checks:
            self.checked.set()

    @property
    def logs(self) -> dict[str, str]:
        """The problems by `{tenant}.{conversation}`."""
        return {entry.key: entry.value.problem for entry in self._view.entries()}

    def damage(self, tenant: str, conversation_id: str) -> LogDamaged | None:
        """Return the damage of a log, or of the whole store; None if none is known."""
        entry = self._view.get(f"{tenant}.{conversation_id}")
        if entry is None and len(self.logs) <= MAX_DAMAGED:
            return None
        return LogDamaged(conversation_id, entry.value.problem if entry else IN_DOUBT)

    async def unready(self) -> str | None:
        """Return why a process is not ready: the logs are not checked, or the whole store is in doubt."""
        if not self.checked.is_set():
            return "the logs are being checked"
        return IN_DOUBT if len(self.logs) > MAX_DAMAGED else None

    async def may_work(self, stop: asyncio.Event) -> bool:
        """Wait until runs may continue; return False if `stop` is set first."""
        while await self.unready() and not stop.is_set():
            await set_within(stop, POLL_S)
        return not stop.is_set()

    async def warning(self) -> str | None:
        found = [f"{log.replace('.', '/')}: {problem}" for log, problem in self.logs.items()]
        if not found:
            return None
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        named = "; ".join(found[:SHOWN]) + more
        return f"{len(found)} damaged: {named}. `banksman check` lists them with the remedy"

    async def report(self, log: str, problem: str) -> LogDamaged:
        """Report a damaged log to all services, unless it is reported; return the error to raise."""
        tenant, _, conversation_id = log.partition(".")
        now = datetime.now(UTC)
        report = DamagedLog(tenant=tenant, conversation_id=conversation_id, problem=problem, found_at=now)
        if await self._bucket.create(log, report) is not None:
            logger.error("log %s is damaged: %s", log, problem)
        return LogDamaged(conversation_id, problem)

    async def clear(self, log: str) -> None:
        """Remove the report of a log that was repaired, accepted or deleted."""
        if await self._bucket.get(log) is not None:
            await self._bucket.delete(log)

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._view)
        if self._checks:
            scope.callback(self._bus.on_reconnect(self._begin))
            self._begin()
            task = self._bus.background.repeat("log-check", self._check, wait=self._wait)
            scope.push_async_callback(task.stop)

    def _begin(self) -> None:
        self.checked.clear()
        self._due.set()

    async def _wait(self) -> None:
        await self._due.wait()

    async def _check(self) -> None:
        self._due.clear()
        for log, problem in [*(await lost_ends(self._bus)).items()][: MAX_DAMAGED + 1]:
            await self.report(log, problem)
        # No run may continue before this process knows of them.
        await self._view.refresh()
        if not self._due.is_set():
            self.checked.set()

    def _changed(self, key: str, entry: Entry[DamagedLog] | None) -> None:
        if entry is not None and self.on_found is not None:
            self.on_found(*key.split("."))
