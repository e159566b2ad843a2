"""Validation of the commits of all logs: numbering without gaps, and one log epoch between restores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import subjects_in
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS, FIRST_SEQ, LAST_SEQ
from banksman.bus.storage.log import StoredCommit, stored_commit
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.events import ConversationUpdated


@dataclass(frozen=True, slots=True)
class LogProblem:
    tenant: str
    conversation_id: str
    problem: str


@dataclass(slots=True)
class _Head:
    stream_seq: int
    last_seq: int
    log_epoch: str


async def conversations(bus: Bus) -> AsyncIterator[tuple[str, str]]:
    """Yield tenant and id of each conversation that has a log."""
    async for subject, _ in subjects_in(bus, EVENTS, subjects.all_of("conversation")):
        yield parts(subject)


async def check_logs(bus: Bus, subject: str | None = None) -> AsyncIterator[LogProblem]:
    """Read all commits, or only the log on `subject`, and yield the first problem of each damaged log."""
    heads: dict[str, _Head] = {}
    damaged: set[str] = set()
    async for message in jetstream.read(bus, EVENTS, subject or subjects.all_of("conversation")):
        if message.subject in damaged:
            continue
        problem = _next(heads, message)
        if problem is not None:
            damaged.add(message.subject)
            heads.pop(message.subject, None)
            yield LogProblem(*parts(message.subject), problem)


async def from_damage_on(bus: Bus, subject: str) -> list[StoredMessage]:
    """Return the messages of a log from the first damaged one; none if the log is intact."""
    heads: dict[str, _Head] = {}
    found: list[StoredMessage] = []
    async for message in jetstream.read(bus, EVENTS, subject, current=True):
        if found or _next(heads, message) is not None:
            found.append(message)
    return found


def _next(heads: dict[str, _Head], message: StoredMessage) -> str | None:
    """Process the next message of a log; return its problem, or None."""
    try:
        stored = stored_commit(message)
    except Poison as poison:
        return poison.reason
    commit, head = stored.commit, heads.get(message.subject)
    if message.headers.get(FIRST_SEQ) != str(commit.first_seq) or message.headers.get(LAST_SEQ) != str(
        commit.last_seq
    ):
        return f"message {message.stream_seq} does not match its headers"
    problem = _numbering(stored) or (_beginning(stored) if head is None else _continuity(head, stored))
    heads[message.subject] = _Head(stored.stream_seq, commit.last_seq, commit.log_epoch)
    return problem


def _numbering(stored: StoredCommit) -> str | None:
    commit = stored.commit
    for expected, event in enumerate(commit.events, start=commit.first_seq):
        if event.seq != expected:
            return f"message {stored.stream_seq} holds event {event.seq} instead of {expected}"
    return None


def _beginning(stored: StoredCommit) -> str | None:
    """Check that a log begins with event 1, or with the tombstone of a deleted conversation."""
    if stored.prev == 0 and stored.commit.first_seq == 1:
        return None
    if is_tombstone(stored):
        return None
    return f"events 1 to {stored.commit.first_seq - 1} are missing"


def is_tombstone(stored: StoredCommit) -> bool:
    """Return whether a commit is the tombstone of a deleted conversation; earlier commits may be purged."""
    bodies = [event.data for event in stored.commit.events]
    return any(isinstance(body, ConversationUpdated) and body.status == "deleted" for body in bodies)


def _continuity(head: _Head, stored: StoredCommit) -> str | None:
    commit = stored.commit
    if commit.first_seq > head.last_seq + 1:
        return f"events {head.last_seq + 1} to {commit.first_seq - 1} are missing"
    if commit.first_seq <= head.last_seq:
        return f"event {commit.first_seq} is stored twice, the second time in message {stored.stream_seq}"
    if stored.prev != head.stream_seq:
        return f"message {stored.stream_seq} names predecessor {stored.prev} instead of {head.stream_seq}"
    # Only a restore starts a new epoch, with a commit that has no events.
    if commit.log_epoch != head.log_epoch and commit.events:
        return f"message {stored.stream_seq} is from another log epoch"
    return None


def parts(subject: str) -> tuple[str, str]:
    """Return tenant and conversation of a log's subject."""
    _, tenant, conversation_id = subject.split(".")
    return tenant, conversation_id
