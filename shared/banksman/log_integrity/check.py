"""The check of all logs: that each holds every event from its first to its last, and none of another's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus import direct
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.log import StoredCommit, stored_commit
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS, FIRST_SEQ, LAST_SEQ, api
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.events import ConversationUpdated


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a log."""

    tenant: str
    conversation_id: str
    problem: str


@dataclass(slots=True)
class _Head:
    stream_seq: int
    last_seq: int
    log_epoch: str


async def conversations(bus: Bus) -> AsyncIterator[tuple[str, str]]:
    """Tenant and id of every conversation that has a log."""
    counts, _ = await commit_counts(bus)
    for subject in counts:
        yield parts(subject)


async def commit_counts(bus: Bus) -> tuple[dict[str, int], dict[str, Any]]:
    """Stored commits by subject of the log, and what the server says of the stream. It reads no commit.

    Raises:
        Unavailable: no answer.
    """
    counts: dict[str, int] = {}
    offset = 0
    while True:
        body = {"subjects_filter": subjects.all_of("conversation"), "offset": offset}
        info = await call(bus, api("STREAM.INFO", EVENTS), body)
        found = cast(dict[str, int], info["state"].get("subjects") or {})
        counts.update(found)
        offset += len(found)
        if not found or offset >= int(info.get("total", 0)):
            return counts, info


async def check_logs(bus: Bus, subject: str | None = None) -> AsyncIterator[Damage]:
    """Read every commit of every conversation and name the logs that are not whole, the first fault of each.

    Args:
        bus: The connection.
        subject: Of the one log to read; None reads all.

    Raises:
        Unavailable: no answer.
    """
    heads: dict[str, _Head] = {}
    damaged: set[str] = set()
    async for message in direct.read(bus, EVENTS, subject or subjects.all_of("conversation")):
        if message.subject in damaged:
            continue
        problem = _next(heads, message)
        if problem is not None:
            damaged.add(message.subject)
            heads.pop(message.subject, None)
            yield Damage(*parts(message.subject), problem)


def _next(heads: dict[str, _Head], message: StoredMessage) -> str | None:
    """Take the next message of a log; what is wrong with it, or None."""
    try:
        stored = stored_commit(message)
    except Poison as poison:
        return poison.reason
    commit, head = stored.commit, heads.get(message.subject)
    if message.headers.get(FIRST_SEQ) != str(commit.first_seq) or message.headers.get(LAST_SEQ) != str(
        commit.last_seq
    ):
        return f"message {message.stream_seq} is not what its headers say"
    problem = _numbering(stored) or (_beginning(stored) if head is None else _joint(head, stored))
    heads[message.subject] = _Head(stored.stream_seq, commit.last_seq, commit.log_epoch)
    return problem


def _numbering(stored: StoredCommit) -> str | None:
    commit = stored.commit
    for expected, event in enumerate(commit.events, start=commit.first_seq):
        if event.seq != expected:
            return f"message {stored.stream_seq} holds event {event.seq} where {expected} belongs"
    return None


def _beginning(stored: StoredCommit) -> str | None:
    """A log begins with event 1, or with the tombstone that is left of it."""
    if stored.prev == 0 and stored.commit.first_seq == 1:
        return None
    if is_tombstone(stored):
        return None
    return f"events 1 to {stored.commit.first_seq - 1} are missing"


def is_tombstone(stored: StoredCommit) -> bool:
    """Whether a commit says that its conversation was deleted; what came before it may be gone."""
    bodies = [event.data for event in stored.commit.events]
    return any(isinstance(body, ConversationUpdated) and body.status == "deleted" for body in bodies)


def _joint(head: _Head, stored: StoredCommit) -> str | None:
    commit = stored.commit
    if commit.first_seq > head.last_seq + 1:
        return f"events {head.last_seq + 1} to {commit.first_seq - 1} are missing"
    if commit.first_seq <= head.last_seq:
        return f"event {commit.first_seq} is stored twice, the second time in message {stored.stream_seq}"
    if stored.prev != head.stream_seq:
        return f"message {stored.stream_seq} follows {stored.prev}, and {head.stream_seq} is before it"
    # Only a restore changes the epoch, by a commit without events.
    if commit.log_epoch != head.log_epoch and commit.events:
        return f"message {stored.stream_seq} is of another log"
    return None


def parts(subject: str) -> tuple[str, str]:
    """Tenant and conversation of a log's subject."""
    _, tenant, conversation_id = subject.split(".")
    return tenant, conversation_id
