"""Record of the stored logs: the number of commits of each log, and its last commit.

A log that lost its last commits looks like a shorter log. Therefore one agent follows the headers of all
commits in stream order and records every few seconds to which logs they belong. The record is divided into
segments of the stream, so that the size of a write depends on the recent commits and not on the number of
conversations. Runs write nothing to the record. It may lack the commits of the last seconds before a crash,
and it never contains commits that were not stored.

`survey` compares the stored logs with the record. The server counts the messages of each subject in memory. A
count below the record shows that a log lost commits: in the middle, at the end, or all of them. Only these
logs are read, because the log of a deleted conversation has only its tombstone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, HEADS, api, kv_stream, kv_subject
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.log import stored_commit
from banksman.bus.storage.tail import last_sequence
from banksman.contracts import subjects
from banksman.contracts.administration import DamagedLog, HeadsMark, HeadsSegment
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id
from banksman.contracts.wire import Timestamp
from banksman.log_integrity.check import is_tombstone
from banksman.log_integrity.damage import found_now

SEGMENT_COMMITS = 2_000
"""Stream sequences per segment of the record."""

_MARK = "mark"
_TIMESTAMP: TypeAdapter[datetime] = TypeAdapter(Timestamp)

CONFIRM_S: Mapping[Replicas, float] = {1: 1.0, 3: 10.0}
"""Seconds for which commits must be missing before a log counts as damaged, by number of replicas: a newly
elected leader may still be catching up with the other servers."""
RECHECK_S = 0.5
MAX_DAMAGED = 1_000
"""Number of damaged logs above which all conversations stop, because the store itself is in doubt."""


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
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._marks = Bucket(bus, HEADS, HeadsMark)
        self.segments = Bucket(bus, HEADS, HeadsSegment)

    async def mark(self) -> Entry[HeadsMark] | None:
        """Return the start of the record."""
        return await self._marks.get_or_drop(_MARK)

    async def read(self) -> KnownHeads:
        """Return the complete record. A replica may serve the read, so the last seconds can be missing."""
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
        """Return the segment that was written last, or None."""
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
        """Replace the record by one of the stored commits; return None if another process replaced it."""
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
    return _TIMESTAMP.validate_python(info["created"])


@dataclass(frozen=True, slots=True)
class Survey:
    known: KnownHeads
    damaged: tuple[DamagedLog, ...] = ()
    reuses_sequences: bool = False
    """Whether the stream reassigns recorded sequences, because it ends before them or was recreated."""


async def survey(heads: LogHeads) -> Survey:
    """Compare the stored commits with the record."""
    bus = heads.bus
    # The record is read before the counts, because logs only grow in between, except on deletion.
    known = await heads.read()
    if known.mark is None:
        return Survey(known)
    every_log = subjects.all_of("conversation")
    stored = {
        subject.partition(".")[2]: count
        async for subject, count in jetstream.subjects_in(bus, EVENTS, every_log)
    }
    info = await call(bus, api("STREAM.INFO", EVENTS))
    suspects = {name: log for name, log in known.logs.items() if stored.get(name, 0) < log.commits}
    # With a maximum age set by an operator, the server removes old commits, so a lower count is no loss.
    damaged = [] if info["config"].get("max_age") else await _confirmed(bus, suspects)
    reuses_sequences = (
        int(info["state"]["last_seq"]) < known.upto or created_at(info) != known.mark.value.stream_created
    )
    return Survey(known, tuple(damaged), reuses_sequences)


async def _confirmed(bus: Bus, suspects: Mapping[str, KnownLog]) -> list[DamagedLog]:
    """Return the logs that lack commits throughout `CONFIRM_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONFIRM_S[bus.settings.replicas]
    found = {name: await _problem(bus, name, log) for name, log in suspects.items()}
    while any(found.values()) and loop.time() < deadline:
        await asyncio.sleep(RECHECK_S)
        found = {
            name: await _problem(bus, name, suspects[name]) for name, problem in found.items() if problem
        }
    return [
        found_now(tenant, conversation_id, problem)
        for name, problem in found.items()
        if problem is not None
        for tenant, _, conversation_id in (name.partition("."),)
    ]


async def _problem(bus: Bus, name: str, log: KnownLog) -> str | None:
    """Return a sentence about the lost commits; None if none is lost, or if the conversation was deleted."""
    tenant, _, conversation_id = name.partition(".")
    subject = subjects.conversation(tenant, conversation_id)
    last = await jetstream.last_message(bus, EVENTS, subject)
    first = await jetstream.next_message(bus, EVENTS, subject, after=0)
    if last is None or first is None:
        return f"all of it is lost: {log.commits} commits were stored"
    try:
        end = stored_commit(last).commit.last_seq
        if is_tombstone(stored_commit(first)):
            return None
    except Poison as poison:
        return poison.reason
    count = await jetstream.count_below(bus, EVENTS, subject)
    if count >= log.commits:
        return None
    if last.stream_seq < log.last:
        return f"its end after event {end} is lost: {log.commits} commits were stored, {count} are left"
    return f"{log.commits - count} commits within it are lost: {log.commits} commits were stored"
