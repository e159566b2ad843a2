"""Protection of an agent from damaged logs: it checks all logs before it works, and records their heads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

from banksman.agent.heads_recorder import WRITE_EVERY_S, CommitFold, HeadsRecorder
from banksman.agent.log_scrub import scrub
from banksman.bus.connection import Bus
from banksman.contracts.errors import BanksmanError
from banksman.log_integrity.damage import DamagedLogs, found_now
from banksman.log_integrity.heads import MAX_DAMAGED, LogHeads, survey
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between two attempts to check the logs at the start."""
SCRUB_AFTER_S = 10.0
"""Seconds after the start until the headers of all commits are read for the first time."""
SCRUB_EVERY_S = 600.0
"""Seconds from a reconnect until the headers of all commits are read again, which limits the load on NATS."""


class LogGuard:
    """Checks all logs at the start of a process and after each reconnect: a server may have restarted.

    While its context is open it records the log heads and repeats the checks in the background.
    """

    def __init__(
        self,
        bus: Bus,
        damaged: DamagedLogs,
        *,
        fold: CommitFold | None = None,
        write_every_s: float = WRITE_EVERY_S,
        scrub_after_s: float = SCRUB_AFTER_S,
    ) -> None:
        """Create the guard.

        Args:
            bus: Connection of an agent.
            damaged: Store that receives the damaged logs.
            fold: State to fold from all commits while this process records the log heads.
            write_every_s: Seconds between two writes of the log heads.
            scrub_after_s: Seconds until the headers of all commits are read for the first time.
        """
        self._background = bus.background
        self._heads = LogHeads(bus)
        self._damaged = damaged
        self._recorder = HeadsRecorder(self._heads, fold=fold, write_every_s=write_every_s)
        self._scrub_wait_s = scrub_after_s
        self._checked = False
        self._reconnected = asyncio.Event()
        self._restarted = asyncio.Event()
        # The first scrub is due without a reconnect.
        self._restarted.set()
        self._tasks: tuple[BackgroundTask, ...] = ()
        self._remove_callback = bus.on_reconnect(self._reconnected.set)

    async def problem(self) -> str | None:
        """Return why the process is not ready, or None."""
        if not self._checked:
            return "the logs are being checked"
        return await self._damaged.unready()

    async def checked(self, stop: asyncio.Event) -> bool:
        """Check all logs and wait until work may start; return False if `stop` is set first."""
        logged: str | None = None
        while not stop.is_set():
            try:
                if not self._checked:
                    await self._check()
                if self._damaged.of_all is None:
                    return True
                reason = self._damaged.of_all
            except BanksmanError as error:
                reason = str(error)
            if reason != logged:
                logger.error("not ready: %s", reason)
                logged = reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()
        return False

    async def __aenter__(self) -> Self:
        await self._recorder.__aenter__()
        background = self._background
        self._tasks = (
            background.repeat("log-check", self._check, wait=self._wait_for_reconnect),
            background.repeat("log-scrub", self._scrub, wait=self._wait_for_scrub),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove_callback()
        for task in self._tasks:
            await task.stop()
        await self._recorder.__aexit__(kind, error, trace)

    async def _wait_for_reconnect(self) -> None:
        await self._reconnected.wait()
        self._reconnected.clear()
        self._restarted.set()

    async def _wait_for_scrub(self) -> None:
        """Wait for the start or a reconnect, then until this process records the log heads."""
        await self._restarted.wait()
        await asyncio.sleep(self._scrub_wait_s)
        self._scrub_wait_s = max(self._scrub_wait_s, SCRUB_EVERY_S)
        await self._recorder.recording.wait()

    async def _scrub(self) -> None:
        """Read the headers of all commits and report the damaged logs."""
        self._restarted.clear()
        async for log in scrub(self._heads):
            await self._damaged.put(log)

    async def _check(self) -> None:
        """Report damaged logs to all services; then restart the record from the remaining commits."""
        found = await survey(self._heads)
        if len(found.damaged) > MAX_DAMAGED:
            first = found.damaged[0]
            problem = (
                f"stream EVENTS: {len(found.damaged)} logs lost stored commits, "
                f"{first.tenant}/{first.conversation_id} among them. Restore a backup, or accept the loss of "
                "all with `banksman accept --all`"
            )
            await self._damaged.put(found_now("", "", problem))
        else:
            for damaged in found.damaged:
                await self._damaged.put(damaged)
        if found.damaged or found.reuses_sequences:
            logger.warning("the record of the log heads restarts: %d logs lost commits", len(found.damaged))
            await self._heads.begin(found.known.mark)
        self._checked = True
