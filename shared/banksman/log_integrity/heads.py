"""What every log held, kept beside the logs: how many commits, and which was the last.

A log that lost its end looks like one that ended there. So one agent follows the headers of all commits in
the order of the stream and keeps, every few seconds, which logs they belong to: in segments of the stream, so
that a write is as large as what happened lately, whatever the number of conversations. No run writes anything
for it. What was stored in the seconds before a crash may be missing; nothing is here that was not stored.
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
from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import new_id
from banksman.contracts.integrity import HeadsMark, HeadsSegment, LogHead
from banksman.contracts.wire import Timestamp

logger = logging.getLogger(__name__)

SEGMENT_COMMITS = 2_000
KEEP_EVERY_S = 5.0
"""Seconds between two writes while commits come."""
STANDBY_S = 10.0
"""Seconds after which a process that does not keep the heads looks whether anybody does."""

_MARK = "mark"
_TIMESTAMP: TypeAdapter[datetime] = TypeAdapter(Timestamp)


@dataclass(slots=True)
class KnownLog:
    """What is known to have been stored of a log."""

    commits: int = 0
    last: int = 0
    """Stream sequence of its last commit."""


@dataclass(slots=True)
class KnownHeads:
    """What is known to have been stored of all logs."""

    mark: Entry[HeadsMark] | None = None
    """None where nobody has begun to keep it."""
    upto: int = 0
    """Stream sequence of the last commit that is counted."""
    logs: dict[str, KnownLog] = field(default_factory=dict[str, KnownLog])
    """By `{tenant}.{conversation}`."""


class LogHeads:
    """The account of all logs."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._marks = Bucket(bus, HEADS, HeadsMark)
        self.segments = Bucket(bus, HEADS, HeadsSegment)

    async def mark(self) -> Entry[HeadsMark] | None:
        """Where the account begins; None when there is none."""
        return await self._marks.get(_MARK)

    async def read(self) -> KnownHeads:
        """All that is kept. A replica may answer: the last few seconds can be missing.

        Raises:
            Unavailable: no answer.
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
        """The segment that was written last."""
        subject = kv_subject(HEADS, f"{generation}.>")
        message = await jetstream.last_message(self.bus, kv_stream(HEADS), subject)
        return None if message is None else self.segments.entry(message)

    async def begin(self, earlier: Entry[HeadsMark] | None) -> HeadsMark | None:
        """Begin a new account of what is stored now in the place of another; None when somebody else did.

        Raises:
            Unavailable, Overloaded: it could not be stored.
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
    """When the server made a stream, by its answer to `STREAM.INFO`."""
    return _TIMESTAMP.validate_python(info["created"])


@dataclass(slots=True)
class _Segment:
    """The segment that is being written."""

    number: int
    revision: int = 0
    """Of what is stored of it; 0 for nothing."""
    upto: int = 0
    heads: dict[str, LogHead] = field(default_factory=dict[str, LogHead])

    def count(self, log: str, stream_seq: int) -> None:
        """Take the next commit."""
        head = self.heads.get(log)
        self.heads[log] = LogHead(commits=head.commits + 1 if head else 1, last=stream_seq)
        self.upto = stream_seq


class HeadsKeeper:
    """Keeps the account, unless another process does. As a context manager it works in the background."""

    def __init__(
        self, heads: LogHeads, *, keep_every_s: float = KEEP_EVERY_S, standby_s: float = STANDBY_S
    ) -> None:
        self._heads = heads
        self._keep_every_s = keep_every_s
        self._standby_s = standby_s
        self._heard: list[tuple[str, int]] = []
        self._ending = asyncio.Event()
        self.keeping = asyncio.Event()
        """Set while this process keeps the account."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_for_ever(), name="heads")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._task:
            await asyncio.wait([self._task], timeout=self._keep_every_s)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_for_ever(self) -> None:
        first, seen = True, 0
        while not self._ending.is_set():
            try:
                mark = await self._heads.mark()
                if mark is None:
                    await self._heads.begin(None)
                    continue
                generation = mark.value.generation
                newest = await self._heads.newest(generation)
                # Whoever keeps the account writes whenever there is something new.
                if first or await self._is_left(newest, seen):
                    first = False
                    await self._keep(generation, newest)
                    newest = await self._heads.newest(generation)
                seen = newest.revision if newest else 0
            except BanksmanError as error:
                logger.warning("the heads of the logs are not kept now: %s", error)
            await self._pause(self._standby_s)

    async def _is_left(self, newest: Entry[HeadsSegment] | None, seen: int) -> bool:
        """Whether nobody wrote since the last look although there is something to write."""
        revision, upto = (newest.revision, newest.value.upto) if newest else (0, 0)
        return revision == seen and await last_sequence(self._heads.bus, EVENTS) > upto

    async def _keep(self, generation: str, newest: Entry[HeadsSegment] | None) -> None:
        """Follow and write, until another process writes or this one ends."""
        segment = _Segment(0)
        if newest is not None:
            number = int(newest.key.rpartition(".")[2])
            segment = _Segment(number, newest.revision, newest.value.upto, dict(newest.value.heads))
        self._heard.clear()
        reader = asyncio.create_task(self._hear(segment.upto), name="heads heard")
        self.keeping.set()
        try:
            while True:
                await self._pause(self._keep_every_s)
                if reader.done():
                    reader.result()
                following = await self._write(generation, segment)
                if following is None:
                    logger.info("the heads of the logs are kept by another process")
                    return
                segment = following
                if self._ending.is_set():
                    return
        finally:
            self.keeping.clear()
            reader.cancel()
            await asyncio.wait([reader])

    async def _hear(self, after: int) -> None:
        async with aclosing(tail(self._heads.bus, EVENTS, after=after)) as commits:
            async for commit in commits:
                _, _, log = commit.subject.partition(".")
                self._heard.append((log, commit.stream_seq))

    async def _write(self, generation: str, segment: _Segment) -> _Segment | None:
        """Keep what was heard; the segment to go on in, or None when another process wrote."""
        heard, self._heard = self._heard, []
        for log, stream_seq in heard:
            number = (stream_seq - 1) // SEGMENT_COMMITS
            if number != segment.number:
                if not await self._put(generation, segment):
                    return None
                segment = _Segment(number)
            segment.count(log, stream_seq)
        return segment if not heard or await self._put(generation, segment) else None

    async def _put(self, generation: str, segment: _Segment) -> bool:
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
