"""Record of the last commit of each log: a log that lost its end looks like a shorter log.

Each commit names its predecessor, so only the end of a log needs this record. One agent follows the headers
of all commits and records every few seconds to which logs they belong. Runs write nothing to the record. It
may lack the commits of the last seconds before a crash, and never contains commits that were not stored.

The record has a message for each segment of the stream, so that the size of a write depends on the recent
commits and not on the number of conversations. Each segment is stored twice. Recording a segment again only
adds to it: a lost segment is recorded from the stream, and a lost commit stays recorded until an operator
accepts its loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import ApiError, call
from banksman.bus.names import EVENTS, HEADS, api
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.tail import stored_headers
from banksman.contracts import subjects
from banksman.contracts.administration import HeadsMark, HeadsSegment
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

Heads = dict[str, int]
"""Stream sequence of the last commit of each log, by `{tenant}.{conversation}`."""


class LogHeads:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._marks = Bucket(bus, HEADS, HeadsMark)
        self._segments = Bucket(bus, HEADS, HeadsSegment)

    async def segments(self) -> dict[int, Heads]:
        """Return the complete record by number of the segment."""
        found: dict[int, Heads] = {}
        for copy in _COPIES:
            async for entry in self._segments.entries(copy):
                number = int(entry.key.removeprefix(f"{copy}."))
                found[number] = later(found.get(number, {}), entry.value.heads)
        return found

    async def claim(self) -> str:
        """Make the caller the process that writes the record; return the id of its claim."""
        mark = HeadsMark(generation=new_id("g"))
        await self._marks.put(_MARK, mark)
        return mark.generation

    async def is_claimed_by(self, claim: str) -> bool:
        mark = await self._marks.get_or_drop(_MARK)
        return mark is not None and mark.value.generation == claim

    async def add(self, number: int, heads: Heads) -> None:
        """Record commits of a segment in both copies. Safe to repeat, also by several processes."""
        for copy in _COPIES:
            await self._change(f"{copy}.{number}", lambda known: later(known, heads))

    async def forget(self, is_forgotten: Callable[[str], bool]) -> None:
        """Remove logs from the record: the loss of a log was accepted, or its tenant deleted."""
        for key in [key for copy in _COPIES for key in await self._segments.keys(copy)]:
            await self._change(
                key, lambda known: {log: last for log, last in known.items() if not is_forgotten(log)}
            )

    async def _change(self, key: str, changed: Callable[[Heads], Heads]) -> None:
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


def later(one: Heads, other: Heads) -> Heads:
    """Return the later commit of each log."""
    return one | {log: max(last, one.get(log, 0)) for log, last in other.items()}


def number_of(stream_seq: int) -> int:
    """Return the number of the segment of a commit."""
    return max(stream_seq - 1, 0) // SEGMENT_COMMITS


async def lost_ends(bus: Bus) -> dict[str, str]:
    """Return the problem of each log that ends before its last recorded commit."""
    # The record is read before the logs, which only grow.
    recorded: Heads = {}
    for heads in (await LogHeads(bus).segments()).values():
        recorded = later(recorded, heads)
    ends: Heads = {}
    async for message in stored_headers(bus, EVENTS, last_on=subjects.all_of("conversation")):
        ends[log_of(message.subject)] = message.stream_seq
    suspects = {log: last for log, last in recorded.items() if ends.get(log, 0) < last}
    # With a maximum age set by an operator, the server removes old commits.
    if not suspects or (await call(bus, api("STREAM.INFO", EVENTS)))["config"].get("max_age"):
        return {}
    return await confirmed(bus, suspects)


async def confirmed(bus: Bus, suspects: Heads) -> dict[str, str]:
    """Return the problem of each log that lacks its last commit throughout `CONFIRM_S`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONFIRM_S[bus.settings.replicas]
    while True:
        suspects = {log: last for log, last in suspects.items() if await _is_lost(bus, log, last)}
        if not suspects or loop.time() > deadline:
            return {log: f"its end is lost, message {last}" for log, last in suspects.items()}
        await asyncio.sleep(RECHECK_S)


async def _is_lost(bus: Bus, log: str, last: int) -> bool:
    try:
        found = await jetstream.last_message(bus, EVENTS, subjects.conversation(*log.split(".")))
    except ApiError:
        # The server counts the message, but cannot read it.
        return True
    return found is None or found.stream_seq < last
