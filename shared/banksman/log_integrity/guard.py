"""Comparison of all logs with the record of their ends, before a process works and after each reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Self

from banksman.bus.connection import Bus
from banksman.contracts.errors import BanksmanError
from banksman.log_integrity.damage import ALL, RECORD, DamagedLogs
from banksman.log_integrity.heads import LogHeads, lost_ends
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

RETRY_S = 1.0
MAX_DAMAGED = 1_000
"""Number of damaged logs above which all conversations stop, because the store itself is in doubt."""


class LogGuard:
    """As a context manager, it repeats the check after each reconnect, as the server may have restarted."""

    def __init__(self, bus: Bus, damaged: DamagedLogs) -> None:
        self._background = bus.background
        self._heads = LogHeads(bus)
        self._damaged = damaged
        self._reconnected = asyncio.Event()
        self._remove_callback = bus.on_reconnect(self._on_reconnect)
        self._task: BackgroundTask | None = None
        damaged.current.clear()

    async def problem(self) -> str | None:
        if not self._damaged.current.is_set():
            return "the logs are being checked"
        return await self._damaged.unready()

    async def checked(self, stop: asyncio.Event) -> bool:
        """Check all logs and wait until work may start; return False if `stop` is set first."""
        logged: str | None = None
        while not stop.is_set():
            try:
                if not self._damaged.current.is_set():
                    await self._check()
                reason = await self._damaged.unready()
            except BanksmanError as error:
                reason = str(error)
            if reason is None:
                return True
            if reason != logged:
                logger.error("not ready: %s", reason)
                logged = reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()
        return False

    async def __aenter__(self) -> Self:
        self._task = self._background.repeat("log-check", self._check, wait=self._wait_for_reconnect)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._remove_callback()
        if self._task is not None:
            await self._task.stop()

    def _on_reconnect(self) -> None:
        self._damaged.current.clear()
        self._reconnected.set()

    async def _wait_for_reconnect(self) -> None:
        await self._reconnected.wait()
        self._reconnected.clear()

    async def _check(self) -> None:
        known = await self._heads.read()
        found = await lost_ends(self._heads.bus, known)
        if len(found) > MAX_DAMAGED:
            problem = (
                f"stream EVENTS: {len(found)} logs lost stored commits, {min(found).replace('.', '/')} among "
                "them. Restore a backup, or accept the loss of all with `banksman accept --all`"
            )
            found = {ALL: problem}
        for log, problem in found.items():
            await self._damaged.put(log, problem)
        if known.missing:
            await self._damaged.put(RECORD, "it is rebuilt from the stored commits")
        self._damaged.current.set()
