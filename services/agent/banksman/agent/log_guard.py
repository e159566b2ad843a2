"""Keeps watch over all logs for an agent: checks them before it works, and keeps the account of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

from banksman.agent.log_scrub import scrub
from banksman.bus.connection import Bus
from banksman.contracts.errors import BanksmanError
from banksman.log_integrity.damage import DamagedLogs, found_now
from banksman.log_integrity.heads import KEEP_EVERY_S, HeadsKeeper, LogHeads
from banksman.log_integrity.survey import MOST_DAMAGED, survey

logger = logging.getLogger(__name__)

RETRY_S = 1.0
SCRUB_AFTER_S = 10.0
SCRUB_EVERY_S = 600.0
"""Seconds after a reconnect until all headers are read again."""


class LogGuard:
    """Checks all logs at the start of a process and after each reconnect, since a server may have restarted.

    As a context manager it keeps the account of the logs, and checks again, in the background.
    """

    def __init__(
        self,
        bus: Bus,
        damaged: DamagedLogs,
        *,
        keep_every_s: float = KEEP_EVERY_S,
        scrub_after_s: float = SCRUB_AFTER_S,
    ) -> None:
        """Describe it.

        Args:
            bus: An agent's connection.
            damaged: Told of what is found.
            keep_every_s: Seconds between two writes of the account.
            scrub_after_s: Seconds until the headers of all commits are read for the first time.
        """
        self._heads = LogHeads(bus)
        self._damaged = damaged
        self._keeper = HeadsKeeper(self._heads, keep_every_s=keep_every_s)
        self._scrub_after_s = scrub_after_s
        self._checked = False
        self._reconnected = asyncio.Event()
        self._restarted = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._remove = bus.on_reconnect(self._reconnected.set)

    async def problem(self) -> str | None:
        """What keeps the process from being ready."""
        if not self._checked:
            return "the logs are being checked"
        return await self._damaged.unready()

    async def checked(self, stop: asyncio.Event) -> bool:
        """Check all logs, and wait while nothing may go on at all; False when `stop` came first."""
        told: str | None = None
        while not stop.is_set():
            try:
                if not self._checked:
                    await self._check()
                if self._damaged.of_all is None:
                    return True
                reason = self._damaged.of_all
            except BanksmanError as error:
                reason = str(error)
            if reason != told:
                logger.error("not ready: %s", reason)
                told = reason
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()
        return False

    async def __aenter__(self) -> Self:
        await self._keeper.__aenter__()
        self._tasks = (
            asyncio.create_task(self._check_for_ever(), name="logs checked"),
            asyncio.create_task(self._scrub_for_ever(), name="logs scrubbed"),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._keeper.__aexit__(kind, error, trace)

    async def _check_for_ever(self) -> None:
        while True:
            await self._reconnected.wait()
            self._reconnected.clear()
            self._restarted.set()
            try:
                await self._check()
            except BanksmanError as error:
                logger.warning("the logs could not be checked: %s", error)
                await asyncio.sleep(RETRY_S)
                self._reconnected.set()

    async def _scrub_for_ever(self) -> None:
        """Read all headers after the start and after reconnects, in the process that keeps the account."""
        wait_s = self._scrub_after_s
        while True:
            await asyncio.sleep(wait_s)
            await self._keeper.keeping.wait()
            self._restarted.clear()
            try:
                async for log in scrub(self._heads):
                    await self._damaged.put(log)
            except BanksmanError as error:
                logger.warning("the headers of the logs could not be read: %s", error)
            await self._restarted.wait()
            wait_s = max(self._scrub_after_s, SCRUB_EVERY_S)

    async def _check(self) -> None:
        """Look once, have every service know what was found, and count anew from what is left."""
        found = await survey(self._heads)
        if len(found.damaged) > MOST_DAMAGED:
            first = found.damaged[0]
            problem = (
                f"stream EVENTS: {len(found.damaged)} logs lost commits that were stored, "
                f"{first.tenant}/{first.conversation_id} among them. Restore a backup, or accept the loss of "
                "all with `banksman accept --all`"
            )
            await self._damaged.put(found_now("", "", problem))
        else:
            for damaged in found.damaged:
                await self._damaged.put(damaged)
        if found.damaged or found.went_back:
            logger.warning("the logs are counted anew: %d of them lost commits", len(found.damaged))
            await self._heads.begin(found.known.mark)
        self._checked = True
