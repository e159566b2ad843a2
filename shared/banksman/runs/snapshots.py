"""Snapshots: the fold of a log, stored in the log itself to save its readers work.

A snapshot only saves work; the log remains the source of truth. The process that appended the commit after
which a snapshot is due writes it, unless another commit follows first. A reader that cannot use a snapshot
folds the whole log.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from datetime import datetime
from functools import cache

from pydantic import TypeAdapter, ValidationError

from banksman.bus.names import SNAPSHOTS
from banksman.bus.storage.log import EventLog, StoredCommit
from banksman.bus.storage.objects import Objects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import KNOWN_TYPES, Commit, Snapshot
from banksman.contracts.ids import digest
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.fold import apply_commit
from banksman.runs.state import Conversation

SNAPSHOT_EVERY = 50
"""Commits from one snapshot of a log to the next."""
RETRY_EVERY = 10
"""Commits after which storing a due snapshot is retried."""
INLINE_BYTES = 256 * 1024
"""Maximum bytes of a snapshot in a commit. A longer one is stored as an object, because every follower of a
log reads all its commits."""

_FORM_REVISION = 1
"""Increase it when the fold gives a field another meaning without changing its type."""
_COMPRESSION_LEVEL = 1
"""Compression level: compresses to a third of the size, in a fifth of the default level's time."""


class UnreadableSnapshot(Exception):
    """A snapshot that this process cannot use; it folds the log instead."""


def is_due(state: Conversation) -> bool:
    count = state.since_snapshot
    wanted = count >= SNAPSHOT_EVERY and (count - SNAPSHOT_EVERY) % RETRY_EVERY == 0
    # Not right after a claim, because the snapshot would conflict with the owner's first commit. Not for a
    # deleted conversation, because its tombstone must stay the last commit, see `handlers.on_delete`.
    return wanted and state.claims_in_row == 0 and not state.deleted


def snapshot_of(state: Conversation) -> Snapshot:
    data = zlib.compress(_states().dump_json(state), _COMPRESSION_LEVEL)
    return Snapshot(form=snapshot_form(), state=base64.b64encode(data).decode())


def state_of(snapshot: Snapshot) -> Conversation:
    """Return the state; raise `UnreadableSnapshot` if it is damaged, or in another form."""
    if snapshot.form != snapshot_form():
        raise UnreadableSnapshot(f"its form is {snapshot.form}, ours is {snapshot_form()}")
    try:
        return _states().validate_json(zlib.decompress(base64.b64decode(snapshot.state or "")))
    except (ValueError, zlib.error) as error:
        raise UnreadableSnapshot(type(error).__name__) from error


def object_name(tenant: str, conversation_id: str) -> str:
    """Return the name of the object that holds a conversation's long snapshots.

    A newer snapshot replaces an older one and serves readers of both commits, because it states its last
    commit.
    """
    return f"{tenant}/{conversation_id}"


def snapshot_commit(state: Conversation, snapshot: Snapshot, commit_id: str, now: datetime) -> Commit:
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
    """Return the name of the form in which a state is packed.

    It changes with any field's name or type, and with a new type of event, because an older version ignores
    events that a newer one folds. Two versions therefore never misread each other's snapshots.
    """
    shape = json.dumps([_bare(_states().json_schema()), sorted(KNOWN_TYPES)], sort_keys=True)
    return f"{_FORM_REVISION}-{digest(shape.encode())[:16]}"


@cache
def _states() -> TypeAdapter[Conversation]:
    return TypeAdapter(Conversation)


def _bare(schema: JsonValue) -> JsonValue:
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


logger = logging.getLogger(__name__)

SNAPSHOT_S = 5.0
"""Seconds that storing or restoring a snapshot may take; after that, the process continues without it."""


class SnapshotStore:
    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._objects = Objects(log.bus, SNAPSHOTS)

    async def store(self, state: Conversation) -> Snapshot:
        """Return a snapshot for a commit: with the state, or with the name of the stored object."""
        snapshot = snapshot_of(state)
        data = snapshot.model_dump_json().encode()
        if len(data) <= INLINE_BYTES:
            return snapshot
        name = object_name(state.tenant, state.conversation_id)
        # Stored before the commit that names it, so that readers of the commit always find the object.
        await self._objects.put(name, data, deadline_s=SNAPSHOT_S)
        return snapshot.model_copy(update={"state": None, "ref": name})

    async def nearest(self, state: Conversation, last: StoredCommit) -> Conversation:
        """Return the newest state to continue the fold from: `state`, or the newest snapshot up to `last`."""
        newest = last.stream_seq if last.commit.snapshot else last.snapshot
        if newest <= state.stream_seq:
            return state
        try:
            async with asyncio.timeout(SNAPSHOT_S):
                found = await self._restored(state, last, newest)
        except (BanksmanError, UnreadableSnapshot, ValidationError, TimeoutError) as error:
            logger.warning(
                "%s: the snapshot at %d cannot be used, folding the log: %s",
                state.conversation_id,
                newest,
                error or "too slow",
            )
            return state
        return found if found.stream_seq > state.stream_seq else state

    async def delete(self, tenant: str, conversation_id: str) -> None:
        await self._objects.delete(object_name(tenant, conversation_id))

    async def _restored(self, state: Conversation, last: StoredCommit, stream_seq: int) -> Conversation:
        tenant, conversation_id = state.tenant, state.conversation_id
        stored = last if last.commit.snapshot else await self._log.at(tenant, conversation_id, stream_seq)
        snapshot = stored.commit.snapshot if stored else None
        if stored is None or snapshot is None:
            raise UnreadableSnapshot("it was removed")
        if snapshot.ref is not None:
            data = await self._objects.get(snapshot.ref, deadline_s=SNAPSHOT_S)
            snapshot = Snapshot.model_validate_json(data)
        found = state_of(snapshot)
        expected = (tenant, conversation_id, stored.commit.log_epoch)
        if (found.tenant, found.conversation_id, found.log_epoch) != expected:
            raise UnreadableSnapshot("it is of another log")
        # An object may be newer than the commit that names it, because all snapshots of a log share one name.
        follows = found.stream_seq == stored.prev
        return apply_commit(found, stored.stream_seq, stored.commit) if follows else found
