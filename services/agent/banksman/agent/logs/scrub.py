"""Search for logs with a gap or a foreign message, in the headers of all commits, in the background.

The server counts messages that it can no longer read. Each commit names its predecessor and its events, so a
missing one is found without reading bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.names import EVENTS
from banksman.bus.storage.tail import stored_headers
from banksman.log_integrity.check import Continuity, check_logs
from banksman.log_integrity.damage import DamagedLogs
from banksman.runtime.background import BackgroundTask

SCRUB_AFTER_S = 10.0
"""Seconds after the start until the headers of all commits are read for the first time."""
SCRUB_EVERY_S = 600.0
"""Seconds from a reconnect until the headers of all commits are read again, which limits the load on NATS."""
AT_ONCE = 500
PAUSE_S = 0.05
"""Seconds of pause after `AT_ONCE` commits: at most 10,000 per second, so that the agent can work."""


class LogScrub:
    """Reads all logs after the start, and after a reconnect, while its context is open."""

    def __init__(
        self,
        bus: Bus,
        damaged: DamagedLogs,
        recording: asyncio.Event,
        *,
        scrub_after_s: float = SCRUB_AFTER_S,
    ) -> None:
        """`recording` is set in the one process that records the ends of logs, and so reads them."""
        self._bus = bus
        self._damaged = damaged
        self._recording = recording
        self._wait_s = scrub_after_s
        self._due = asyncio.Event()
        # The first one is due without a reconnect.
        self._due.set()
        self._task: BackgroundTask | None = None

    async def __aenter__(self) -> Self:
        self._remove_callback = self._bus.on_reconnect(self._due.set)
        self._task = self._bus.background.repeat("log-scrub", self._scrub, wait=self._wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._remove_callback()
        if self._task is not None:
            await self._task.stop()

    async def _wait(self) -> None:
        await self._due.wait()
        await asyncio.sleep(self._wait_s)
        self._wait_s = max(self._wait_s, SCRUB_EVERY_S)
        await self._recording.wait()

    async def _scrub(self) -> None:
        self._due.clear()
        async for log, problem in scrub(self._bus):
            await self._damaged.put(log, problem)


async def scrub(bus: Bus) -> AsyncIterator[tuple[str, str]]:
    """Read the headers of all stored commits; yield each damaged log and its problem."""
    continuity, suspects, count = Continuity(), set[str](), 0
    async with aclosing(stored_headers(bus, EVENTS)) as commits:
        async for commit in commits:
            if continuity.problem(commit.subject, commit.stream_seq, commit.headers):
                suspects.add(commit.subject)
            count += 1
            if count % AT_ONCE == 0:
                await asyncio.sleep(PAUSE_S)
    for subject in suspects:
        async for damage in check_logs(bus, subject):
            yield damage
