"""The logs, folded: from the newest snapshot on, and kept at hand."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from datetime import datetime

from pydantic import ValidationError

from banksman.bus.errors import LogBroken
from banksman.bus.log import Conflict, EventLog, StoredCommit
from banksman.bus.names import SNAPSHOTS
from banksman.bus.objects import Objects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import Commit, Snapshot
from banksman.contracts.ids import new_id
from banksman.runs import journal, snapshots
from banksman.runs.snapshots import UnreadableSnapshot
from banksman.runs.state import Conversation, apply_commit

logger = logging.getLogger(__name__)

KEPT_CONVERSATIONS = 2_000
"""Folded conversations that a process keeps at hand; others are folded anew from the log."""

SNAPSHOT_S = 5.0
"""Seconds that writing or reading a snapshot may take before it is done without."""


class FoldedLog:
    """The logs, folded, the recent ones kept at hand.

    A kept fold is only a head start: every read asks the stream's leader whether there is more.
    """

    def __init__(self, log: EventLog, *, keep: int = KEPT_CONVERSATIONS) -> None:
        self._log = log
        self._objects = Objects(log.bus, SNAPSHOTS)
        self._keep = keep
        self._folds: OrderedDict[tuple[str, str], Conversation] = OrderedDict()

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """The fold of everything stored when the call was made, or later.

        Its cost does not depend on the length of the log, but on the commits after its newest snapshot.

        Raises:
            LogBroken: a commit is missing from the log.
            Poison: a commit cannot be decoded.
            Unavailable: no answer.
        """
        state = self.at_hand(tenant, conversation_id)
        if state.stream_seq and not await self._log.more(tenant, conversation_id, after=state.stream_seq):
            return state
        last = await self._log.last(tenant, conversation_id)
        if last is None:
            return state
        try:
            return self._remember(await self._folded(state, last))
        except LogBroken:
            if not state.stream_seq:
                raise
        # Where our fold ends nothing follows any more: the log of a deleted conversation was purged.
        self.forget(tenant, conversation_id)
        return self._remember(await self._folded(Conversation(tenant, conversation_id), last))

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        """Store a commit right behind `state`; None when another came first.

        Where a snapshot is due it follows at once, best effort.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: as `EventLog.append`.
        """
        stored = await self._append(state, commit)
        if stored is None or not snapshots.is_due(stored):
            return stored
        return await self._snapshot(stored, commit.ts) or stored

    def at_hand(self, tenant: str, conversation_id: str) -> Conversation:
        """The kept fold, perhaps behind the log; an empty one when none is kept."""
        key = (tenant, conversation_id)
        if key in self._folds:
            self._folds.move_to_end(key)
            return self._folds[key]
        return Conversation(tenant, conversation_id)

    def forget(self, tenant: str, conversation_id: str) -> None:
        """Keep nothing of a conversation: its next reader folds it from the log."""
        self._folds.pop((tenant, conversation_id), None)

    async def _folded(self, state: Conversation, last: StoredCommit) -> Conversation:
        """The fold up to `last` or beyond, from `state` on or from the newest snapshot."""
        state = await self._nearest(state, last)
        for stored in await self._tail(state, last):
            state = apply_commit(state, stored.stream_seq, stored.commit)
        return state

    async def _append(self, state: Conversation, commit: Commit) -> Conversation | None:
        stored = await self._log.append(
            state.tenant, state.conversation_id, commit, after=state.stream_seq, snapshot=state.snapshot_seq
        )
        if isinstance(stored, Conflict):
            if stored.last < state.stream_seq:
                logger.error("%s: commits up to %d are lost", state.conversation_id, state.stream_seq)
                self.forget(state.tenant, state.conversation_id)
            return None
        journal.tell(commit)
        return self._remember(apply_commit(state, stored, commit))

    async def _snapshot(self, state: Conversation, now: datetime) -> Conversation | None:
        """Store a snapshot behind `state`; None when it is not, or nobody knows whether it is."""
        try:
            async with asyncio.timeout(SNAPSHOT_S):
                snapshot = await self._placed(state, snapshots.snapshot_of(state))
                commit = snapshots.snapshot_commit(state, snapshot, new_id("e"), now)
                return await self._append(state, commit)
        except (BanksmanError, TimeoutError) as error:
            logger.warning("%s: no snapshot was written: %s", state.conversation_id, error or "too slow")
            return None

    async def _placed(self, state: Conversation, snapshot: Snapshot) -> Snapshot:
        """The snapshot as its commit holds it: itself, or where it is kept by now."""
        data = snapshot.model_dump_json().encode()
        if len(data) <= snapshots.INLINE_BYTES:
            return snapshot
        name = snapshots.object_name(state)
        await self._objects.put(name, data, deadline_s=SNAPSHOT_S)
        return snapshot.model_copy(update={"state": None, "ref": name})

    async def _nearest(self, state: Conversation, last: StoredCommit) -> Conversation:
        """The newest state that can be had without folding: the kept one, or that of the newest snapshot."""
        newest = last.stream_seq if last.commit.snapshot else last.snapshot
        if newest <= state.stream_seq:
            return state
        try:
            async with asyncio.timeout(SNAPSHOT_S):
                found = await self._restored(state, last, newest)
        except (BanksmanError, UnreadableSnapshot, ValidationError, TimeoutError) as error:
            logger.warning(
                "%s: the snapshot at %d is of no use, folding the log: %s",
                state.conversation_id,
                newest,
                error or "too slow",
            )
            return state
        return found if found.stream_seq > state.stream_seq else state

    async def _restored(self, state: Conversation, last: StoredCommit, stream_seq: int) -> Conversation:
        tenant, conversation_id = state.tenant, state.conversation_id
        stored = last if last.commit.snapshot else await self._log.at(tenant, conversation_id, stream_seq)
        snapshot = stored.commit.snapshot if stored else None
        if stored is None or snapshot is None:
            raise UnreadableSnapshot("it is gone")
        if snapshot.ref is not None:
            data = await self._objects.get(snapshot.ref, deadline_s=SNAPSHOT_S)
            snapshot = Snapshot.model_validate_json(data)
        found = snapshots.state_of(snapshot)
        ours = (tenant, conversation_id, stored.commit.log_epoch)
        if (found.tenant, found.conversation_id, found.log_epoch) != ours:
            raise UnreadableSnapshot("it is of another log")
        behind = found.stream_seq == stored.prev
        return apply_commit(found, stored.stream_seq, stored.commit) if behind else found

    async def _tail(self, state: Conversation, last: StoredCommit) -> list[StoredCommit]:
        """The commits after `state`, up to `last` or beyond."""
        if last.stream_seq <= state.stream_seq:
            return []
        if last.prev == state.stream_seq:
            return [last]
        return await self._log.read(state.tenant, state.conversation_id, after=state.stream_seq, leader=True)

    def _remember(self, state: Conversation) -> Conversation:
        key = (state.tenant, state.conversation_id)
        known = self._folds.get(key)
        if known is None or known.stream_seq <= state.stream_seq:
            self._folds[key] = state
        self._folds.move_to_end(key)
        if len(self._folds) > self._keep:
            self._folds.popitem(last=False)
        return state
