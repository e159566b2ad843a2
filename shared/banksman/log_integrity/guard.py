"""Comparison of all logs with the record of their ends, before a process works and after each reconnect."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from banksman.bus.connection import Bus
from banksman.log_integrity.damage import MAX_DAMAGED, DamagedLogs
from banksman.log_integrity.heads import lost_ends
from banksman.runtime.background import BackgroundTask

POLL_S = 0.05


class LogGuard:
    """Checks while its context is open; a reconnect may follow a restart of the server."""

    def __init__(self, bus: Bus, damaged: DamagedLogs) -> None:
        self._bus = bus
        self._damaged = damaged
        self._due = asyncio.Event()
        self._task: BackgroundTask | None = None

    async def problem(self) -> str | None:
        if not self._damaged.current.is_set():
            return "the logs are being checked"
        return await self._damaged.unready()

    async def checked(self, stop: asyncio.Event) -> bool:
        """Wait until work may start; return False if `stop` is set first."""
        while await self.problem() and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await stop.wait()
        return not stop.is_set()

    async def __aenter__(self) -> Self:
        self._remove_callback = self._bus.on_reconnect(self._begin)
        self._begin()
        self._task = self._bus.background.repeat("log-check", self._check, wait=self._wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._remove_callback()
        if self._task is not None:
            await self._task.stop()

    def _begin(self) -> None:
        self._damaged.current.clear()
        self._due.set()

    async def _wait(self) -> None:
        await self._due.wait()

    async def _check(self) -> None:
        self._due.clear()
        for log, problem in [*(await lost_ends(self._bus)).items()][: MAX_DAMAGED + 1]:
            await self._damaged.put(log, problem)
        if not self._due.is_set():
            self._damaged.current.set()
