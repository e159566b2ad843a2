"""The event logs: appended by compare-and-set, read in batches, checked for gaps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from banksman.bus import direct, jetstream
from banksman.bus.connection import Bus
from banksman.bus.errors import LogBroken, WrongLastSequence
from banksman.bus.messages import StoredMessage
from banksman.bus.names import CONSUMED, EVENTS, FIRST_SEQ, LAST_SEQ, LOG_EPOCH, MSG_ID, PREV, SNAPSHOT
from banksman.bus.publish import durable, message_id
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.events import Commit
from banksman.contracts.usage import CommitUsage

logger = logging.getLogger(__name__)

GAP_READS = 3
"""Times a log is read again where a commit is missing before it counts as broken. A replica may lag."""


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A commit and its place in the stream."""

    stream_seq: int
    prev: int
    """Stream sequence of the commit before it in the same log; 0 for the first."""
    commit: Commit
    snapshot: int = 0
    """Stream sequence of the log's newest snapshot when this was stored; 0 for none."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another commit was stored first: read what came after, and decide anew."""

    last: int
    """Stream sequence of the log's last commit when the append was refused."""


class EventLog:
    """The logs of all conversations."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def append(
        self, tenant: str, conversation_id: str, commit: Commit, *, after: int, snapshot: int = 0
    ) -> int | Conflict:
        """Store a commit when `after` is still the last one.

        An append whose acknowledgement was lost is told apart from one that another overtook.

        Args:
            tenant: Who owns the conversation.
            conversation_id: Whose log.
            commit: Its `id` is the message id; the same commit may be appended again.
            after: Stream sequence of the log's last commit as the caller knows it; 0 for none.
            snapshot: Stream sequence of the log's newest snapshot; 0 for none.

        Returns:
            The stream sequence of this commit, or a `Conflict`.

        Raises:
            Overloaded: the stream is full.
            MessageTooLarge: the commit does not fit one message.
            Unavailable: no acknowledgement in 30 s; whether it is stored is not known.
        """
        subject = subjects.conversation(tenant, conversation_id)
        try:
            ack = await durable(
                self.bus,
                subject,
                commit.model_dump_json(by_alias=True).encode(),
                msg_id=commit.id,
                expect_last_subject_seq=after,
                headers=_headers(commit, after, snapshot),
            )
        except WrongLastSequence as refused:
            return await self._stored_before(subject, commit, after) or Conflict(refused.found)
        return ack.stream_seq

    async def read(
        self, tenant: str, conversation_id: str, *, after: int = 0, leader: bool = False
    ) -> list[StoredCommit]:
        """The stored commits after a stream sequence, in order and without gaps.

        Args:
            tenant: Who owns the conversation.
            conversation_id: Whose log.
            after: Stream sequence of the last commit that the caller has; 0 for all.
            leader: True guarantees that the last stored commit is among them.

        Raises:
            LogBroken: a commit is missing for good.
            Poison: a commit cannot be decoded.
            Unavailable: no answer.
        """
        subject = subjects.conversation(tenant, conversation_id)
        commits: list[StoredCommit] = []
        for _ in range(GAP_READS):
            position = commits[-1].stream_seq if commits else after
            async for message in direct.read(self.bus, EVENTS, subject, after=position):
                stored = stored_commit(message)
                if not _follows(stored, position):
                    break
                commits.append(stored)
                position = stored.stream_seq
            else:
                return commits + await self._from_leader(subject, position) if leader else commits
        return commits + await self._from_leader(subject, commits[-1].stream_seq if commits else after)

    async def last(self, tenant: str, conversation_id: str) -> StoredCommit | None:
        """The last commit as the stream's leader knows it; None for an empty log.

        Raises:
            Poison: it cannot be decoded.
            Unavailable: no answer.
        """
        subject = subjects.conversation(tenant, conversation_id)
        message = await jetstream.last_message(self.bus, EVENTS, subject)
        return None if message is None else stored_commit(message)

    async def at(self, tenant: str, conversation_id: str, stream_seq: int) -> StoredCommit | None:
        """The commit at a stream sequence as the leader knows it; None when it is gone.

        Raises:
            Poison: it cannot be decoded.
            Unavailable: no answer.
        """
        subject = subjects.conversation(tenant, conversation_id)
        message = await jetstream.next_message(self.bus, EVENTS, subject, after=stream_seq - 1)
        return None if message is None or message.stream_seq != stream_seq else stored_commit(message)

    async def more(self, tenant: str, conversation_id: str, *, after: int) -> bool:
        """Whether the leader has a commit after a stream sequence; cheap when it has none."""
        subject = subjects.conversation(tenant, conversation_id)
        return await jetstream.next_message(self.bus, EVENTS, subject, after=after) is not None

    async def purge(self, tenant: str, conversation_id: str, *, before: int | None = None) -> int:
        """Remove a log but for its tombstone, by which whoever comes late knows, and what followed it.

        A right of the janitor. Returns the number of commits that were removed.

        Args:
            tenant: Who owns the conversation.
            conversation_id: Whose log.
            before: Stream sequence of the tombstone; None for the last commit, if nobody can append another.
        """
        subject = subjects.conversation(tenant, conversation_id)
        keep = 1 if before is None else 0
        return await jetstream.purge_subject(self.bus, EVENTS, subject, keep=keep, before=before)

    async def _stored_before(self, subject: str, commit: Commit, after: int) -> int | None:
        """The sequence of `commit` when an earlier try stored it.

        It can only be the first one after `after`: that is what its expectation says. Others may have
        followed it since.
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


def stored_commit(message: StoredMessage) -> StoredCommit:
    """Decode a stored commit.

    Raises:
        Poison: it is no commit.
    """
    return decode_commit(message.subject, message.stream_seq, message.headers, message.data)


def decode_commit(subject: str, stream_seq: int, headers: Mapping[str, str], data: bytes) -> StoredCommit:
    """Decode a commit from its sequence, its headers and its bytes.

    Raises:
        Poison: it is no commit.
    """
    try:
        # Only agents may write here, so the fast parser does; what clients send goes through `wire.parse`.
        commit = Commit.model_validate_json(data)
        return StoredCommit(stream_seq, int(headers[PREV]), commit, int(headers.get(SNAPSHOT, "0")))
    except (KeyError, ValueError) as error:
        raise Poison(subject, f"message {stream_seq} is no commit: {type(error).__name__}") from error


def _follows(stored: StoredCommit, position: int) -> bool:
    # Position 0 reads from the start, which retention may have cut off.
    return position == 0 or stored.prev == position
