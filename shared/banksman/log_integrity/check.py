"""Validation of the commits of all logs: numbering without gaps, and one log epoch between restores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS, FIRST_SEQ, LAST_SEQ, LOG_EPOCH, PREV
from banksman.bus.storage.log import EventLog, StoredCommit, stored_commit
from banksman.bus.storage.tail import stored_headers
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.events import Commit, ConversationUpdated

AT_ONCE = 500
PAUSE_S = 0.05
"""Seconds of pause after `AT_ONCE` commits: at most 10,000 per second, so that an agent can work."""


class Continuity:
    """Compares each commit with the one before it in its log, by their headers, in stream order."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[int, int, str]] = {}
        """Stream sequence, last event and log epoch of the last commit of each log, by subject."""

    def problem(self, subject: str, stream_seq: int, headers: Mapping[str, str]) -> str | None:
        """Return why the next commit of a log does not follow the commits before it."""
        try:
            first, last, prev = (int(headers[name]) for name in (FIRST_SEQ, LAST_SEQ, PREV))
            epoch = headers[LOG_EPOCH]
        except (KeyError, ValueError):
            return f"message {stream_seq} is no commit"
        # The events before the first commit of a log are numbered up to 0.
        prev_seq, end, prev_epoch = self._heads.get(subject, (0, 0, epoch))
        self._heads[subject] = (stream_seq, last, epoch)
        if first > end + 1:
            return f"events {end + 1} to {first - 1} are missing"
        if first <= end:
            return f"event {first} is stored twice, the second time in message {stream_seq}"
        if prev != prev_seq:
            return f"message {stream_seq} names predecessor {prev} instead of {prev_seq}"
        # Only a restore starts a new epoch, with a commit that has no events.
        if epoch != prev_epoch and first <= last:
            return f"message {stream_seq} is from another log epoch"
        return None


async def check_logs(bus: Bus, subject: str | None = None) -> AsyncIterator[tuple[str, str]]:
    """Read all commits, or those on `subject`; yield each damaged log and its first problem."""
    check, damaged = _CommitCheck(), set[str]()
    async for message in jetstream.read(bus, EVENTS, subject or subjects.all_of("conversation")):
        if message.subject in damaged:
            continue
        begins = check.begins(message.subject)
        problem = check.problem(message)
        if problem is not None and not (begins and await whole_log(bus, message.subject)):
            damaged.add(message.subject)
            yield log_of(message.subject), problem


async def broken_logs(bus: Bus) -> AsyncIterator[tuple[str, str]]:
    """Yield the damaged logs, as `check_logs` does, but read only the headers of intact logs, and slowly."""
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


async def whole_log(bus: Bus, subject: str) -> list[StoredCommit]:
    """Return all commits of a log, of which an interrupted purge leaves some; none without its beginning."""
    tenant, conversation_id = log_of(subject).split(".")
    try:
        commits = await EventLog(bus).read(tenant, conversation_id, leader=True)
    except (LogDamaged, Poison):
        return []
    return commits if commits and commits[0].prev == 0 else []


async def from_damage_on(bus: Bus, subject: str) -> list[StoredMessage]:
    """Return the messages of a log from the first damaged one; none if the log is intact."""
    check, found = _CommitCheck(), list[StoredMessage]()
    async for message in jetstream.read(bus, EVENTS, subject, current=True):
        if found or check.problem(message) is not None:
            found.append(message)
    return found


class _CommitCheck:
    def __init__(self) -> None:
        self._continuity = Continuity()
        self._begun: set[str] = set()

    def begins(self, subject: str) -> bool:
        return subject not in self._begun

    def problem(self, message: StoredMessage) -> str | None:
        begins = self.begins(message.subject)
        self._begun.add(message.subject)
        problem = self._continuity.problem(message.subject, message.stream_seq, message.headers)
        try:
            commit = stored_commit(message).commit
        except Poison as poison:
            return poison.reason
        if message.headers.get(FIRST_SEQ) != str(commit.first_seq) or message.headers.get(LAST_SEQ) != str(
            commit.last_seq
        ):
            return f"message {message.stream_seq} does not match its headers"
        for expected, event in enumerate(commit.events, start=commit.first_seq):
            if event.seq != expected:
                return f"message {message.stream_seq} holds event {event.seq} instead of {expected}"
        # The commits before the tombstone of a deleted conversation are purged, and archived ones too.
        return None if begins and (commit.archive is not None or _is_tombstone(commit)) else problem


def _is_tombstone(commit: Commit) -> bool:
    bodies = [event.data for event in commit.events]
    return any(isinstance(body, ConversationUpdated) and body.status == "deleted" for body in bodies)


def log_of(subject: str) -> str:
    """Return `{tenant}.{conversation}` of a log's subject."""
    return subject.partition(".")[2]
