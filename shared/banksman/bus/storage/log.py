"""The event logs of conversations: compare-and-set appends, batched reads, gap detection."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.errors import LogBroken, WrongLastSequence
from banksman.bus.messages import StreamMessage
from banksman.bus.names import (
    ARCHIVE,
    CONSUMED,
    EVENTS,
    FIRST_SEQ,
    LAST_SEQ,
    LOG_EPOCH,
    MSG_ID,
    PREV,
    SNAPSHOT,
)
from banksman.bus.publish import durable, encoded, message_id
from banksman.bus.storage.objects import ObjectBroken, Objects, owned_name
from banksman.contracts import subjects
from banksman.contracts.errors import NotFound, Poison
from banksman.contracts.events import Archive, Commit
from banksman.contracts.ids import new_id
from banksman.contracts.usage import CommitUsage

PART_BYTES = 4 * 1024 * 1024
"""Bytes of commits after which another part begins."""
_OWNER = "log"


class ArchivedCommits:
    """Messages of old logs, unchanged but compressed, in parts in an object store.

    A log whose commits were archived begins with a commit that names the parts (`Commit.archive`).
    """

    def __init__(self, bus: Bus) -> None:
        self._objects = Objects(bus, ARCHIVE)

    async def store(
        self, tenant: str, conversation_id: str, messages: Iterable[StreamMessage]
    ) -> tuple[str, ...]:
        """Store messages of a log, each part read back and compared; return the ids of the parts."""
        parts: list[str] = []
        for piece in _pieces(messages):
            part = new_id("p")
            packed = await asyncio.to_thread(_packed, piece)
            await self._objects.put(owned_name(_OWNER, tenant, conversation_id, part), packed)
            if await self.read(tenant, conversation_id, (part,)) != piece:
                raise ObjectBroken(ARCHIVE, part)
            parts.append(part)
        return tuple(parts)

    async def read(self, tenant: str, conversation_id: str, parts: Iterable[str]) -> list[StreamMessage]:
        """Return the messages of parts; raise `NotFound` or `ObjectBroken` if one is lost or damaged."""
        subject = subjects.conversation(tenant, conversation_id)
        found: list[StreamMessage] = []
        for part in parts:
            packed = await self._objects.get(owned_name(_OWNER, tenant, conversation_id, part))
            found += await asyncio.to_thread(_unpacked, subject, packed)
        return found

    async def remove(self, tenant: str, conversation_id: str, *parts: str) -> None:
        """Remove parts of a log; without `parts` all, also those of an interrupted archiving."""
        for path in [(part,) for part in parts] or [()]:
            await self._objects.remove(owned_name(_OWNER, tenant, conversation_id, *path))


def _pieces(messages: Iterable[StreamMessage]) -> Iterator[list[StreamMessage]]:
    piece: list[StreamMessage] = []
    size = 0
    for message in messages:
        piece.append(StreamMessage(message.subject, message.data, message.headers, message.stream_seq))
        size += len(message.data)
        if size >= PART_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _packed(messages: list[StreamMessage]) -> bytes:
    lines = ([one.stream_seq, dict(one.headers), one.data.decode()] for one in messages)
    return zlib.compress("\n".join(map(json.dumps, lines)).encode())


def _unpacked(subject: str, packed: bytes) -> list[StreamMessage]:
    lines = map(json.loads, zlib.decompress(packed).splitlines())
    return [StreamMessage(subject, data.encode(), headers, stream_seq) for stream_seq, headers, data in lines]


logger = logging.getLogger(__name__)

GAP_READS = 3
"""Reads from replicas, which may lag, before a log with a missing commit is read from the leader."""


HEADER_BYTES = 300
"""Approximate bytes that a commit takes in the stream in addition to its payload: subject and headers."""


def stored_size(payload_bytes: int) -> int:
    """Return the approximate bytes that a commit takes in the stream."""
    return payload_bytes + HEADER_BYTES


@dataclass(frozen=True, slots=True)
class StoredCommit:
    stream_seq: int
    prev: int
    """Stream sequence of the previous commit of the log; 0 for the first."""
    commit: Commit
    snapshot: int = 0
    """Stream sequence of the log's newest snapshot when this was stored; 0 for none."""


@dataclass(frozen=True, slots=True)
class AppendConflict:
    """Another commit was stored first: the caller reads it and decides again."""

    last: int
    """Stream sequence of the log's last commit when the append was refused."""


class EventLog:
    """Access to the logs of all conversations.

    Reads raise `Unavailable` if the broker does not respond, and `Poison` for an unreadable commit.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.archived = ArchivedCommits(bus)

    async def append(
        self, tenant: str, conversation_id: str, commit: Commit, *, after: int, snapshot: int = 0
    ) -> int | AppendConflict:
        """Append a commit if the last commit of the log is at `after`.

        Safe to repeat: an append whose acknowledgement was lost returns its sequence.

        Args:
            commit: The commit. Its `id` is the message id.
            after: Stream sequence of the log's last commit as far as the caller knows; 0 for none.
            snapshot: Stream sequence of the log's newest snapshot; 0 for none.

        Returns:
            The stream sequence of this commit, or an `AppendConflict`.

        Raises:
            MessageTooLarge: The commit exceeds the size limit of a message.
            Unavailable: No acknowledgement arrived in 30 s; whether the commit is stored is unknown.
        """
        subject = subjects.conversation(tenant, conversation_id)
        try:
            ack = await durable(
                self.bus,
                subject,
                encoded(commit),
                msg_id=commit.id,
                expect_last_subject_seq=after,
                headers=_headers(commit, after, snapshot),
            )
        except WrongLastSequence as refused:
            # The server may also refuse the retry of an append that was stored and whose acknowledgement was
            # lost (10071 even with the same message id), so compare ids before reporting a conflict.
            return await self._stored_before(subject, commit, after) or AppendConflict(refused.found)
        return ack.stream_seq

    async def read(
        self,
        tenant: str,
        conversation_id: str,
        *,
        after: int = 0,
        leader: bool = False,
        through_seq: float = math.inf,
    ) -> list[StoredCommit]:
        """Return the stored commits after a stream sequence, in order and without gaps, also archived ones.

        Args:
            after: Stream sequence of the last commit that the caller has; 0 for all.
            leader: True guarantees that the last stored commit is included.
            through_seq: Number of the last event that is needed: commits after it may be left out.

        Raises:
            LogBroken: The leader does not have one of the commits, and no archive has it.
        """
        subject = subjects.conversation(tenant, conversation_id)
        try:
            commits = await self._read(subject, after, leader, through_seq)
            if after or not commits or not commits[0].prev:
                return commits
        except LogBroken:
            commits = await self._read(subject, 0, leader, math.inf) if after else []
            if _archive_in(commits) is None:
                raise
        return [stored for stored in await self._with_archived(subject, commits) if stored.stream_seq > after]

    async def _with_archived(self, subject: str, commits: list[StoredCommit]) -> list[StoredCommit]:
        """Return all commits of a log of which the first ones may be archived."""
        archive, prev = _archive_in(commits), commits[0].prev
        if archive is None:
            return commits
        _, tenant, conversation_id = subject.split(".")
        try:
            messages = await self.archived.read(tenant, conversation_id, archive.parts)
        except (NotFound, ObjectBroken) as lost:
            raise LogBroken(subject, 0, prev) from lost
        # An interrupted purge leaves commits that are archived too.
        before = [stored_commit(message) for message in messages if message.stream_seq <= prev]
        if not before or before[-1].stream_seq != prev:
            raise LogBroken(subject, 0, prev)
        return before + commits

    async def _read(self, subject: str, after: int, leader: bool, through_seq: float) -> list[StoredCommit]:
        commits: list[StoredCommit] = []
        for _ in range(GAP_READS):
            position = commits[-1].stream_seq if commits else after
            async for message in jetstream.read(self.bus, EVENTS, subject, after=position):
                stored = stored_commit(message)
                if not _follows(stored, position):
                    break
                commits.append(stored)
                position = stored.stream_seq
                if stored.commit.last_seq >= through_seq:
                    return commits
            else:
                return commits + await self._from_leader(subject, position) if leader else commits
        return commits + await self._from_leader(subject, commits[-1].stream_seq if commits else after)

    async def last(self, tenant: str, conversation_id: str) -> StoredCommit | None:
        """Return the last commit, read from the leader; None for an empty log."""
        subject = subjects.conversation(tenant, conversation_id)
        message = await jetstream.last_message(self.bus, EVENTS, subject)
        return None if message is None else stored_commit(message)

    async def at(self, tenant: str, conversation_id: str, stream_seq: int) -> StoredCommit | None:
        """Return the commit at a stream sequence from the leader, or the archive; None if it was removed."""
        subject = subjects.conversation(tenant, conversation_id)
        message = await jetstream.next_message(self.bus, EVENTS, subject, after=stream_seq - 1)
        if message is not None and message.stream_seq == stream_seq:
            return stored_commit(message)
        if message is None or stored_commit(message).commit.archive is None:
            return None
        archived = await self.read(tenant, conversation_id, leader=True)
        return next((stored for stored in archived if stored.stream_seq == stream_seq), None)

    async def more(self, tenant: str, conversation_id: str, *, after: int) -> bool:
        """Return whether the leader has a commit after a stream sequence. Reads at most one commit."""
        subject = subjects.conversation(tenant, conversation_id)
        return await jetstream.next_message(self.bus, EVENTS, subject, after=after) is not None

    async def size(self, tenant: str, conversation_id: str, *, before: int) -> int:
        """Return the approximate bytes of the commits before a stream sequence. Reads all of them."""
        size, subject = 0, subjects.conversation(tenant, conversation_id)
        async for message in jetstream.read(self.bus, EVENTS, subject):
            size += stored_size(len(message.data)) if message.stream_seq < before else 0
        return size

    async def purge(self, tenant: str, conversation_id: str, *, before: int | None = None) -> int:
        """Remove the commits before the tombstone; return how many were removed.

        The tombstone stays so that a late writer finds the deletion. Only the janitor's user may purge.

        Args:
            before: Stream sequence of the tombstone. None retains the last commit, for a log to which no
                other process can append.
        """
        subject = subjects.conversation(tenant, conversation_id)
        keep = 1 if before is None else 0
        return await jetstream.purge_subject(self.bus, EVENTS, subject, keep=keep, before=before)

    async def _stored_before(self, subject: str, commit: Commit, after: int) -> int | None:
        """Return the stream sequence of `commit` if an earlier attempt stored it.

        Only the first commit after `after` can be it, because the append expected `after` to be the last one.
        Other commits may have followed it.
        """
        first = await jetstream.next_message(self.bus, EVENTS, subject, after=after)
        if first is None or first.headers.get(MSG_ID) != message_id(subject, commit.id):
            return None
        logger.info("%s: commit %s was stored; its acknowledgement was lost", subject, commit.id)
        return first.stream_seq

    async def _from_leader(self, subject: str, position: int) -> list[StoredCommit]:
        commits: list[StoredCommit] = []
        while message := await jetstream.next_message(self.bus, EVENTS, subject, after=position):
            stored = stored_commit(message)
            if not _follows(stored, position):
                raise LogBroken(subject, position, stored.prev)
            commits.append(stored)
            position = stored.stream_seq
        return commits


def _headers(commit: Commit, after: int, snapshot: int) -> dict[str, str]:
    headers = {
        FIRST_SEQ: str(commit.first_seq),
        LAST_SEQ: str(commit.last_seq),
        PREV: str(after),
        LOG_EPOCH: commit.log_epoch,
        SNAPSHOT: str(snapshot),
    }
    consumed = CommitUsage.of(commit.events)
    return {**headers, CONSUMED: consumed.header} if consumed.requests else headers


def stored_commit(message: StreamMessage) -> StoredCommit:
    """Decode a stored commit; raise `Poison` if the message is not a valid commit."""
    headers, stream_seq = message.headers, message.stream_seq
    try:
        # Permissions allow only agents to write here, so the fast parser suffices. Input of clients goes
        # through the strict `wire.parse`.
        commit = Commit.model_validate_json(message.data)
        return StoredCommit(stream_seq, int(headers[PREV]), commit, int(headers.get(SNAPSHOT, "0")))
    except (KeyError, ValueError) as error:
        raise Poison(message.subject, f"message {stream_seq} is no commit: {type(error).__name__}") from error


def _archive_in(commits: list[StoredCommit]) -> Archive | None:
    return next((one.commit.archive for one in reversed(commits) if one.commit.archive), None)


def _follows(stored: StoredCommit, position: int) -> bool:
    # A read from position 0 cannot check its first commit: retention may have removed the commits before it.
    return position == 0 or stored.prev == position
