"""Stores snapshots of folded logs and restores them."""

from __future__ import annotations

import asyncio
import logging

from pydantic import ValidationError

from banksman.bus.names import SNAPSHOTS
from banksman.bus.storage.log import EventLog, StoredCommit
from banksman.bus.storage.objects import Objects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import Snapshot
from banksman.runs import snapshots
from banksman.runs.fold import apply_commit
from banksman.runs.snapshots import UnreadableSnapshot
from banksman.runs.state import Conversation

logger = logging.getLogger(__name__)

SNAPSHOT_S = 5.0
"""Seconds that storing or restoring a snapshot may take; after that, the process continues without it."""


class SnapshotStore:
    """Snapshots: short ones in the log itself, long ones as objects."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._objects = Objects(log.bus, SNAPSHOTS)

    async def store(self, state: Conversation) -> Snapshot:
        """Return a snapshot for a commit: with the state, or with the name of the stored object.

        Raises:
            Overloaded, Unavailable: The object is not stored.
        """
        snapshot = snapshots.snapshot_of(state)
        data = snapshot.model_dump_json().encode()
        if len(data) <= snapshots.INLINE_BYTES:
            return snapshot
        name = snapshots.object_name(state.tenant, state.conversation_id)
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
        """Remove the snapshot of a deleted conversation that is stored as an object."""
        await self._objects.delete(snapshots.object_name(tenant, conversation_id))

    async def _restored(self, state: Conversation, last: StoredCommit, stream_seq: int) -> Conversation:
        tenant, conversation_id = state.tenant, state.conversation_id
        stored = last if last.commit.snapshot else await self._log.at(tenant, conversation_id, stream_seq)
        snapshot = stored.commit.snapshot if stored else None
        if stored is None or snapshot is None:
            raise UnreadableSnapshot("it was removed")
        if snapshot.ref is not None:
            data = await self._objects.get(snapshot.ref, deadline_s=SNAPSHOT_S)
            snapshot = Snapshot.model_validate_json(data)
        found = snapshots.state_of(snapshot)
        expected = (tenant, conversation_id, stored.commit.log_epoch)
        if (found.tenant, found.conversation_id, found.log_epoch) != expected:
            raise UnreadableSnapshot("it is of another log")
        # An object may be newer than the commit that names it, because all snapshots of a log share one name.
        follows = found.stream_seq == stored.prev
        return apply_commit(found, stored.stream_seq, stored.commit) if follows else found
