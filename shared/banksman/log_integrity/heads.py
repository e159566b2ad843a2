"""Record of the stored logs: the number of commits of each log, and its last commit.

A log that lost its last commits looks like a shorter log. Therefore one agent follows the headers of all
commits in stream order and records every few seconds to which logs they belong. The record is divided into
segments of the stream, so that the size of a write depends on the recent commits and not on the number of
conversations. Runs write nothing to the record. It may lack the commits of the last seconds before a crash,
and it never contains commits that were not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import EVENTS, HEADS, api, kv_stream, kv_subject
from banksman.bus.tail import last_sequence, tail
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id
from banksman.contracts.integrity import HeadsMark, HeadsSegment, LogHead
from banksman.contracts.wire import Timestamp
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

SEGMENT_COMMITS = 2_000
"""Stream sequences per segment of the record."""
WRITE_EVERY_S = 5.0
"""Seconds between two writes while commits arrive."""
STANDBY_S = 10.0
"""Seconds between two checks of a standby process whether another process writes the record."""

_MARK = "mark"
_TIMESTAMP: TypeAdapter[datetime] = TypeAdapter(Timestamp)


@dataclass(slots=True)
class KnownLog:
    """The recorded state of a log."""

    commits: int = 0
    last: int = 0
    """Stream sequence of its last commit."""


@dataclass(slots=True)
class KnownHeads:
    """The recorded state of all logs."""

    mark: Entry[HeadsMark] | None = None
    """Start of the record; None if there is no record."""
    upto: int = 0
    """Stream sequence of the last recorded commit."""
    logs: dict[str, KnownLog] = field(default_factory=dict[str, KnownLog])
    """By `{tenant}.{conversation}`."""


class LogHeads:
    """The stored record."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._marks = Bucket(bus, HEADS, HeadsMark)
        self.segments = Bucket(bus, HEADS, HeadsSegment)

    async def mark(self) -> Entry[HeadsMark] | None:
        """Return the start of the record, or None."""
        return await self._marks.get_or_drop(_MARK)

    async def read(self) -> KnownHeads:
        """Return the complete record. A replica may serve the read, so the last few seconds can be missing.

        Raises:
            Unavailable: the broker does not respond.
        """
        known = KnownHeads(await self.mark())
        if known.mark is None:
            return known
        async for entry in self.segments.entries(known.mark.value.generation):
            known.upto = max(known.upto, entry.value.upto)
            for name, head in entry.value.heads.items():
                log = known.logs.setdefault(name, KnownLog())
                log.commits += head.commits
                log.last = max(log.last, head.last)
        return known

    async def newest(self, generation: str) -> Entry[HeadsSegment] | None:
        """Return the segment that was written last, or None.

        Raises:
            Poison: It cannot be decoded; it is dead-lettered.
        """
        subject = kv_subject(HEADS, f"{generation}.>")
        message = await jetstream.last_message(self.bus, kv_stream(HEADS), subject)
        if message is None:
            return None
        try:
            return self.segments.entry(message)
        except Poison as poison:
            await self.segments.unreadable.report(message, poison.reason)
            raise

    async def begin(self, earlier: Entry[HeadsMark] | None) -> HeadsMark | None:
        """Replace the record by a record of the stored commits; return None if another process replaced it.

        Raises:
            Unavailable, Overloaded: the record could not be stored.
        """
        mark = HeadsMark(
            generation=new_id("g"),
            stream_created=created_at(await call(self.bus, api("STREAM.INFO", EVENTS))),
            began_at=datetime.now(UTC),
        )
        if earlier is None:
            written = await self._marks.create(_MARK, mark)
        else:
            written = await self._marks.update(_MARK, mark, earlier.revision)
            subject = kv_subject(HEADS, f"{earlier.value.generation}.>")
            await jetstream.purge_subject(self.bus, kv_stream(HEADS), subject)
        return mark if written is not None else None


def created_at(info: dict[str, Any]) -> datetime:
    """Return the creation time of a stream from its `STREAM.INFO`."""
    return _TIMESTAMP.validate_python(info["created"])


@dataclass(slots=True)
class _Segment:
    """The segment that is being written."""

    number: int
    revision: int = 0
    """Revision of the stored segment; 0 if none is stored."""
    upto: int = 0
    heads: dict[str, LogHead] = field(default_factory=dict[str, LogHead])

    def count(self, log: str, stream_seq: int) -> None:
        """Count a commit."""
        head = self.heads.get(log)
        self.heads[log] = LogHead(commits=head.commits + 1 if head else 1, last=stream_seq)
        self.upto = stream_seq


class HeadsRecorder:
    """Writes the record in the background while its context is open, unless another process does."""

    def __init__(
        self, heads: LogHeads, *, write_every_s: float = WRITE_EVERY_S, standby_s: float = STANDBY_S
    ) -> None:
        self._heads = heads
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
                logger.error("the record of the logs starts again: %s", poison)
                await self._heads.begin(mark)
                continue
            await self._pause(self._standby_s)

    async def _attend(self, generation: str) -> None:
        """Write the record while no other process does."""
        newest = await self._heads.newest(generation)
        # The writer records new commits regularly. If it stops, a standby process takes over.
        if self._first or await self._is_unattended(newest, self._seen):
            self._first = False
            await self._follow(generation, newest)
            newest = await self._heads.newest(generation)
        self._seen = newest.revision if newest else 0

    async def _is_unattended(self, newest: Entry[HeadsSegment] | None, seen: int) -> bool:
        """Return whether no process wrote since the last check although there are new commits."""
        revision, upto = (newest.revision, newest.value.upto) if newest else (0, 0)
        return revision == seen and await last_sequence(self._heads.bus, EVENTS) > upto

    async def _follow(self, generation: str, newest: Entry[HeadsSegment] | None) -> None:
        """Follow the commits and write them, until another process writes or this one stops."""
        segment = _Segment(0)
        if newest is not None:
            number = int(newest.key.rpartition(".")[2])
            segment = _Segment(number, newest.revision, newest.value.upto, dict(newest.value.heads))
        self._received.clear()
        reader = asyncio.create_task(self._receive(segment.upto), name="heads received")
        self.recording.set()
        try:
            while True:
                await self._pause(self._write_every_s)
                if reader.done():
                    reader.result()
                following = await self._write(generation, segment)
                if following is None:
                    logger.info("another process writes the record of the logs")
                    return
                segment = following
                if self._ending.is_set():
                    return
        finally:
            self.recording.clear()
            reader.cancel()
            await asyncio.wait([reader])

    async def _receive(self, after: int) -> None:
        async with aclosing(tail(self._heads.bus, EVENTS, after=after)) as commits:
            async for commit in commits:
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

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
