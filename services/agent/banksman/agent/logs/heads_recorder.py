"""Follows the headers of all commits: one agent records the ends of logs, and counts the usage of tenants.

Each follower receives one message per commit. Therefore one agent follows, and passes each commit to both
folds over all logs.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Self

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus import jetstream
from banksman.bus.names import EVENTS
from banksman.bus.storage.tail import tail
from banksman.contracts import subjects
from banksman.log_integrity.check import log_of
from banksman.log_integrity.damage import RECORD, DamagedLogs
from banksman.log_integrity.heads import SEGMENT_COMMITS, LogHeads, Segment, number_of
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
STANDBY_S = 10.0
"""Seconds after which a standby process checks again whether another process follows the commits."""


class HeadsRecorder:
    """Writes the record of the ends of logs while its context is open, unless another process writes it."""

    def __init__(
        self,
        heads: LogHeads,
        damaged: DamagedLogs,
        usage: UsageLedger,
        *,
        write_every_s: float = WRITE_EVERY_S,
        standby_s: float = STANDBY_S,
    ) -> None:
        self._heads = heads
        self._damaged = damaged
        self._usage = usage
        self._write_every_s = write_every_s
        self._standby_s = standby_s
        self._received: dict[int, Segment] = {}
        """Commits that are not recorded yet, by segment."""
        self._complete = asyncio.Event()
        """Set once the commits of all segments that were missing are received."""
        self._ending = asyncio.Event()
        self.recording = asyncio.Event()
        """Set while this process writes the record."""
        self._task: BackgroundTask | None = None

    async def __aenter__(self) -> Self:
        self._task = self._heads.bus.background.run("heads", self._record)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        if self._task:
            await self._task.ended(self._write_every_s)
            await self._task.stop()

    async def _record(self) -> None:
        while not self._ending.is_set():
            if self._usage.wanted.is_set() or not await self._usage.is_followed():
                await self._follow()
            await _first_of(self._standby_s, self._ending, self._usage.wanted)

    async def _follow(self) -> None:
        """Record all commits until this process ends, or another one claims the record."""
        claim = await self._heads.claim()
        after = await self._begin()
        if await self._heads.claimed_by() != claim:
            return
        after = min(after, await self._usage.begin())
        reader = asyncio.create_task(self._receive(after), name="heads received")
        self.recording.set()
        try:
            await _first_of(self._write_every_s, self._ending, self._complete)
            while await self._write(claim) and not self._ending.is_set():
                await _first_of(self._write_every_s, self._ending)
                if reader.done():
                    reader.result()
        finally:
            self.recording.clear()
            reader.cancel()
            await asyncio.wait([reader])
            await self._usage.end()

    async def _begin(self) -> int:
        """Return the stream sequence after which commits may be missing in the record."""
        known = await self._heads.read()
        for number, heads in known.in_one_copy:
            logger.warning("segment %d of the record of the log heads is lost in one copy", number)
            await self._heads.add(number, heads)
        self._received = {number: {} for number in known.missing}
        # The newest segment grows, so it is always read again.
        after = min([known.newest, *known.missing]) * SEGMENT_COMMITS
        every_log = subjects.all_of("conversation")
        if known.missing and await jetstream.next_message(self._heads.bus, EVENTS, every_log, after=after):
            self._complete.clear()
        else:
            self._complete.set()
        return after

    async def _receive(self, after: int) -> None:
        async with aclosing(tail(self._heads.bus, EVENTS, after=after)) as commits:
            async for commit in commits:
                self._usage.take(commit)
                segment = self._received.setdefault(number_of(commit.stream_seq), {})
                segment[log_of(commit.subject)] = commit.stream_seq
                if commit.pending == 0:
                    self._complete.set()

    async def _write(self, claim: str) -> bool:
        """Record what was received; return False if another process does so."""
        # A part of a missing segment must not look like the complete one.
        if not self._complete.is_set():
            return True
        if self._received and await self._heads.claimed_by() != claim:
            logger.info("another process writes the record of the log heads")
            return False
        received, self._received = self._received, {}
        for number, heads in sorted(received.items()):
            await self._heads.add(number, heads)
        if await self._damaged.incomplete():
            await self._damaged.clear(RECORD)
        return True


async def _first_of(timeout_s: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, for at most `timeout_s` seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
