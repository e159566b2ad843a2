"""Record of the last commit of each log: a log that lost its end looks like a shorter log.

Each commit names its predecessor, so only the end of a log needs this record. One agent follows the headers
of all commits and records every few seconds to which logs they belong. Runs write nothing to the record. It
may lack the commits of the last seconds before a crash, and never contains commits that were not stored.

The record has a message for each segment of the stream, so that the size of a write depends on the recent
commits and not on the number of conversations. Each segment is stored twice. Recording a segment again only
adds to it: a lost segment is recorded from the stream, and a lost commit stays recorded, after a restart too,
until an operator accepts its loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError, call
from banksman.bus.names import EVENTS, HEADS, api
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import stored_commit
from banksman.bus.storage.tail import stored_headers
from banksman.contracts import subjects
from banksman.contracts.administration import HeadsMark, HeadsSegment
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id
from banksman.log_integrity.check import log_of

SEGMENT_COMMITS = 2_000
"""Stream sequences per segment of the record."""
CONFIRM_S: Mapping[Replicas, float] = {1: 1.0, 3: 10.0}
"""Seconds for which a commit must be missing before it counts as lost, by number of replicas: a newly elected
leader may still be catching up with the other servers."""
RECHECK_S = 0.5

_MARK = "mark"
_COPIES = ("a", "b")

Segment = dict[str, int]
"""Stream sequence of the last commit of each log, `{tenant}.{conversation}`, in one segment."""


@dataclass(frozen=True, slots=True)
class KnownHeads:
    copies: tuple[dict[int, Segment], dict[int, Segment]]
    """The segments by number, in each copy."""
    end: int
    """Stream sequence of the last message of the stream."""

    @property
    def logs(self) -> Segment:
        """The last recorded commit of each log."""
        logs: Segment = {}
        for copy in self.copies:
            for heads in copy.values():
                logs |= {log: max(last, logs.get(log, 0)) for log, last in heads.items()}
        return logs

    @property
    def newest(self) -> int:
        """The number of the segment that contains the end of the stream, or of the last recorded one."""
        recorded = max((max(copy, default=0) for copy in self.copies), default=0)
        return min(recorded, number_of(self.end))

    @property
    def in_one_copy(self) -> list[tuple[int, Segment]]:
        """The segments that are lost in the other copy."""
        first, second = self.copies
        return [(number, (first | second)[number]) for number in first.keys() ^ second.keys()]

    @property
    def missing(self) -> list[int]:
        """The numbers of the segments in neither copy: the ends of logs in them may be lost unnoticed."""
        first, second = self.copies
        needed = range(number_of(self.end) + 1) if self.end else ()
        return [number for number in needed if number not in first and number not in second]


class LogHeads:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._marks = Bucket(bus, HEADS, HeadsMark)
        self._segments = Bucket(bus, HEADS, HeadsSegment)

    async def read(self) -> KnownHeads:
        """Return the complete record."""
        end = int((await call(self.bus, api("STREAM.INFO", EVENTS)))["state"]["last_seq"])
        return KnownHeads((await self._copy(_COPIES[0]), await self._copy(_COPIES[1])), end)

    async def claim(self) -> str:
        """Make the caller the process that writes the record; return the id of its claim."""
        mark = HeadsMark(generation=new_id("g"), began_at=datetime.now(UTC))
        await self._marks.put(_MARK, mark)
        return mark.generation

    async def claimed_by(self) -> str | None:
        """Return the id of the newest claim."""
        mark = await self._marks.get_or_drop(_MARK)
        return mark and mark.value.generation

    async def add(self, number: int, heads: Segment) -> None:
        """Record commits of a segment. Safe to repeat, also by several processes."""
        for copy in _COPIES:
            await self._change(
                f"{copy}.{number}",
                lambda known: known | {log: max(last, known.get(log, 0)) for log, last in heads.items()},
            )

    async def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Remove logs from the record: the loss of a log was accepted, or its tenant deleted."""
        for copy in _COPIES:
            for number in await self._copy(copy):
                await self._change(
                    f"{copy}.{number}",
                    lambda known: {log: last for log, last in known.items() if not is_forgotten(log)},
                )

    async def _copy(self, copy: str) -> dict[int, Segment]:
        entries = self._segments.entries(copy)
        return {int(entry.key.rpartition(".")[2]): entry.value.heads async for entry in entries}

    async def _change(self, key: str, changed: Callable[[Segment], Segment]) -> None:
        """Apply a change to the stored segment, or to an empty one."""
        written = None
        while written is None:
            entry = await self._segments.get_or_drop(key)
            heads = changed(entry.value.heads if entry else {})
            if entry is None:
                written = await self._segments.create(key, HeadsSegment(heads=heads))
            elif heads != entry.value.heads:
                written = await self._segments.update(key, HeadsSegment(heads=heads), entry.revision)
            else:
                return


def number_of(stream_seq: int) -> int:
    """Return the number of the segment of a commit."""
    return max(stream_seq - 1, 0) // SEGMENT_COMMITS


async def lost_ends(bus: Bus, known: KnownHeads) -> dict[str, str]:
    """Return the problem of each log that ends before its last recorded commit."""
    ends: Segment = {}
    async for message in stored_headers(bus, EVENTS, last_on=subjects.all_of("conversation")):
        ends[log_of(message.subject)] = message.stream_seq
    suspects = {log: last for log, last in known.logs.items() if ends.get(log, 0) < last}
    # With a maximum age set by an operator, the server removes old commits.
    if not suspects or (await call(bus, api("STREAM.INFO", EVENTS)))["config"].get("max_age"):
        return {}
    return await confirmed(bus, suspects)


async def confirmed(bus: Bus, suspects: Segment) -> dict[str, str]:
    """Return the problem of each log that lacks its last commit throughout `CONFIRM_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONFIRM_S[bus.settings.replicas]
    while True:
        problems = {log: await _problem(bus, log, last) for log, last in suspects.items()}
        found = {log: problem for log, problem in problems.items() if problem is not None}
        if not found or loop.time() > deadline:
            return found
        suspects = {log: suspects[log] for log in found}
        await asyncio.sleep(RECHECK_S)


async def _problem(bus: Bus, log: str, last: int) -> str | None:
    """Return a sentence about the lost end of a log; None if nothing is lost."""
    subject = subjects.conversation(*log.split("."))
    try:
        found = await jetstream.last_message(bus, EVENTS, subject)
        if found is None:
            return f"all of it is lost: its last commit was message {last}"
        end = stored_commit(found).commit.last_seq
    except Poison as poison:
        return poison.reason
    except ApiError as error:
        return f"its last commit, message {last}, cannot be read: {error.description}"
    if found.stream_seq >= last:
        return None
    return f"its end after event {end} is lost: its last commit was message {last}"
