"""Snapshots: a fold kept in its own log, so that the next reader begins there and not at the beginning.

A snapshot is a head start and never the truth: it is written by whoever appended the commit that made it due,
only when nothing came between, and a reader that cannot use one folds the log without it.
"""

from __future__ import annotations

import base64
import json
import zlib
from datetime import datetime
from functools import cache

from pydantic import TypeAdapter

from banksman.contracts.events import KNOWN_TYPES, Commit, Snapshot
from banksman.contracts.ids import digest
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.state import Conversation

SNAPSHOT_EVERY = 50
"""Commits from one snapshot of a log to the next."""
TRY_AGAIN_EVERY = 10
"""Commits until it is tried again, when a snapshot that was due is not stored."""
INLINE_BYTES = 256 * 1024
"""A longer one is kept as an object that its commit names: every follower of a log reads its commits."""

_MEANING = 1
"""To be raised when the fold gives a field another meaning without changing its type."""
_FAST = 1
"""Level of compression: a third of the size for a fifth of the time that the default level takes."""


class UnreadableSnapshot(Exception):
    """A snapshot that this process cannot use: the log itself is to be folded."""


def is_due(state: Conversation) -> bool:
    """Whether the log wants a snapshot behind the commit that led to `state`.

    Not while claims follow one another, whose owners must not lose a race to it; nor for a deleted
    conversation, whose last commit is its tombstone.
    """
    count = state.since_snapshot
    wanted = count >= SNAPSHOT_EVERY and (count - SNAPSHOT_EVERY) % TRY_AGAIN_EVERY == 0
    return wanted and state.claims_in_row == 0 and not state.deleted


def snapshot_of(state: Conversation) -> Snapshot:
    """The state, packed."""
    data = zlib.compress(_states().dump_json(state), _FAST)
    return Snapshot(form=snapshot_form(), state=base64.b64encode(data).decode())


def state_of(snapshot: Snapshot) -> Conversation:
    """The state that was packed.

    Raises:
        UnreadableSnapshot: it is damaged, kept elsewhere, or of another form than ours.
    """
    if snapshot.form != snapshot_form():
        raise UnreadableSnapshot(f"its form is {snapshot.form}, ours is {snapshot_form()}")
    try:
        return _states().validate_json(zlib.decompress(base64.b64decode(snapshot.state or "")))
    except (ValueError, zlib.error) as error:
        raise UnreadableSnapshot(type(error).__name__) from error


def object_name(state: Conversation) -> str:
    """Where a long snapshot of a conversation is kept.

    One name for all of them: a newer one replaces the older, and serves its readers as well, because each
    says itself how far it goes.
    """
    return f"{state.tenant}/{state.conversation_id}"


def snapshot_commit(state: Conversation, snapshot: Snapshot, commit_id: str, now: datetime) -> Commit:
    """The commit behind `state` that holds its snapshot, and changes nothing else."""
    return Commit(
        ts=now,
        id=commit_id,
        log_epoch=state.log_epoch,
        first_seq=state.last_seq + 1,
        owner=state.owner,
        owner_epoch=state.owner_epoch,
        snapshot=snapshot,
    )


@cache
def snapshot_form() -> str:
    """Names the form of a packed state: any change of a field's name or type makes another one.

    So does another type of event, since an older version passes over what a newer one folds in. Two versions
    of this code that run side by side thus never read each other's snapshots wrongly.
    """
    shape = json.dumps([_bare(_states().json_schema()), sorted(KNOWN_TYPES)], sort_keys=True)
    return f"{_MEANING}-{digest(shape.encode())[:16]}"


@cache
def _states() -> TypeAdapter[Conversation]:
    return TypeAdapter(Conversation)


def _bare(schema: JsonValue) -> JsonValue:
    """A JSON schema without its prose."""
    match schema:
        case dict():
            kept: JsonObject = {
                key: _bare(value)
                for key, value in schema.items()
                if not (key in ("description", "title") and isinstance(value, str))
            }
            return kept
        case list():
            return [_bare(value) for value in schema]
        case _:
            return schema
