"""Record of the stored logs: the number of commits of each log, and its last commit.

A log that lost its last commits looks like a shorter log. Therefore one agent follows the headers of all
commits in stream order and records every few seconds to which logs they belong. The record is divided into
segments of the stream, so that the size of a write depends on the recent commits and not on the number of
conversations. Runs write nothing to the record. It may lack the commits of the last seconds before a crash,
and it never contains commits that were not stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.kv import Bucket, Entry
from banksman.bus.names import EVENTS, HEADS, api, kv_stream, kv_subject
from banksman.bus.tail import last_sequence
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id
from banksman.contracts.integrity import HeadsMark, HeadsSegment
from banksman.contracts.wire import Timestamp

SEGMENT_COMMITS = 2_000
"""Stream sequences per segment of the record."""

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

    async def is_behind(self, newest: Entry[HeadsSegment] | None) -> bool:
        """Return whether there are commits after those of the newest segment."""
        return await last_sequence(self.bus, EVENTS) > (newest.value.upto if newest else 0)

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
