"""Follows the headers of all commits: one agent records the log heads, and folds the commits for all agents.

Each follower receives one message per commit. Therefore one agent follows, and also passes each commit to the
other fold over all logs, the usage of tenants.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.names import EVENTS
from banksman.bus.storage.kv import Entry
from banksman.bus.storage.tail import tail
from banksman.contracts.administration import HeadsSegment, LogHead
from banksman.contracts.errors import Poison
from banksman.log_integrity.heads import SEGMENT_COMMITS, LogHeads
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
STANDBY_S = 10.0
"""Seconds after which a standby process checks again whether another process writes the record."""


@dataclass(slots=True)
class _Segment:
    number: int
    revision: int = 0
    """Revision of the stored segment; 0 if none is stored."""
    upto: int = 0
    heads: dict[str, LogHead] = field(default_factory=dict[str, LogHead])

    def count(self, log: str, stream_seq: int) -> None:
        head = self.heads.get(log)
        self.heads[log] = LogHead(commits=head.commits + 1 if head else 1, last=stream_seq)
        self.upto = stream_seq


class HeadsRecorder:
    """Writes the record of the log heads while its context is open, unless another process writes it."""

    def __init__(
        self,
        heads: LogHeads,
        *,
        fold: UsageLedger | None = None,
        write_every_s: float = WRITE_EVERY_S,
        standby_s: float = STANDBY_S,
    ) -> None:
        self._heads = heads
        self._fold = fold
        self._write_every_s = write_every_s
        self._standby_s = standby_s
        self._received: list[tuple[str, int]] = []
        self._ending = asyncio.Event()
        self.recording = asyncio.Event()
        """Set while this process writes the record."""
        # This state outlives the task, so that a restarted task continues at the failure.
        self._first, self._seen = True, 0
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
            mark = await self._heads.mark()
            if mark is None:
                await self._heads.begin(None)
                continue
            try:
                await self._attend(mark.value.generation)
            except Poison as poison:
                logger.error("the record of the log heads starts again: %s", poison)
                await self._heads.begin(mark)
                continue
            await self._stand_by()

    async def _attend(self, generation: str) -> None:
        newest = await self._heads.newest(generation)
        # The writer records new commits regularly. If it stops, a standby process takes over.
        if self._first or await self._is_unattended(newest, self._seen):
            self._first = False
            await self._follow(generation, newest)
            newest = await self._heads.newest(generation)
        self._seen = newest.revision if newest else 0

    async def _is_unattended(self, newest: Entry[HeadsSegment] | None, seen: int) -> bool:
        """Return True if new commits exist, but no process has written the record since the last check."""
        if self._fold and (self._fold.wanted.is_set() or not await self._fold.is_followed()):
            return True
        return (newest.revision if newest else 0) == seen and await self._heads.is_behind(newest)

    async def _follow(self, generation: str, newest: Entry[HeadsSegment] | None) -> None:
        segment = _Segment(0)
        if newest is not None:
            number = int(newest.key.rpartition(".")[2])
            segment = _Segment(number, newest.revision, newest.value.upto, dict(newest.value.heads))
        self._received.clear()
        after = segment.upto if self._fold is None else min(segment.upto, await self._fold.begin())
        reader = asyncio.create_task(self._receive(after, segment.upto), name="heads received")
        self.recording.set()
        try:
            while True:
                await self._pause(self._write_every_s)
                if reader.done():
                    reader.result()
                following = await self._write(generation, segment)
                if following is None:
                    logger.info("another process writes the record of the log heads")
                    return
                segment = following
                if self._ending.is_set():
                    return
        finally:
            self.recording.clear()
            reader.cancel()
            await asyncio.wait([reader])
            if self._fold is not None:
                await self._fold.end()

    async def _receive(self, after: int, recorded: int) -> None:
        async with aclosing(tail(self._heads.bus, EVENTS, after=after)) as commits:
            async for commit in commits:
                if self._fold is not None:
                    self._fold.take(commit)
                if commit.stream_seq > recorded:
                    _, _, log = commit.subject.partition(".")
                    self._received.append((log, commit.stream_seq))

    async def _write(self, generation: str, segment: _Segment) -> _Segment | None:
        """Write the received commits; return the current segment, or None if another process wrote."""
        received, self._received = self._received, []
        for log, stream_seq in received:
            number = (stream_seq - 1) // SEGMENT_COMMITS
            if number != segment.number:
                if not await self._store(generation, segment):
                    return None
                segment = _Segment(number)
            segment.count(log, stream_seq)
        return segment if not received or await self._store(generation, segment) else None

    async def _store(self, generation: str, segment: _Segment) -> bool:
        if not segment.heads:
            return True
        key, segments = f"{generation}.{segment.number}", self._heads.segments
        value = HeadsSegment(upto=segment.upto, heads=segment.heads)
        if segment.revision:
            revision = await segments.update(key, value, segment.revision)
        else:
            revision = await segments.create(key, value)
        segment.revision = revision or 0
        return revision is not None

    async def _stand_by(self) -> None:
        wakers = [self._ending] if self._fold is None else [self._ending, self._fold.wanted]
        waits = [asyncio.create_task(waker.wait()) for waker in wakers]
        try:
            await asyncio.wait(waits, timeout=self._standby_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
