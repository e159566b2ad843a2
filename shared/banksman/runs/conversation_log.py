"""The logs of conversations, folded and checked for damage.

A process caches recent folds, but checks with the leader of the stream at every read whether more follows. If
the cached fold ends with a commit that the log no longer has, the log was purged or is damaged: it is folded
from the start, and damage is reported to every service. Each stored commit also writes the log lines that
operators need.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.errors import LogBroken
from banksman.bus.storage.log import AppendConflict, EventLog, StoredCommit
from banksman.contracts import events
from banksman.contracts.errors import BanksmanError
from banksman.contracts.ids import new_id
from banksman.contracts.messages import text_of
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import confirmed
from banksman.runs.fold import apply_commit, complete_commit
from banksman.runs.snapshots import SNAPSHOT_S, SnapshotStore, is_due, snapshot_commit
from banksman.runs.state import Conversation

logger = logging.getLogger(__name__)

CACHED_CONVERSATIONS = 500
"""Folded conversations that a process caches; others are folded again from the log."""


class ConversationLog:
    def __init__(
        self, bus: Bus, damaged: DamagedLogs | None = None, *, cached: int = CACHED_CONVERSATIONS
    ) -> None:
        """Create the log; without `damaged`, damage raises `LogBroken` and is not reported."""
        self._bus = bus
        self._commits = EventLog(bus)
        self._snapshots = SnapshotStore(self._commits)
        self._damaged = damaged
        self._cached = cached
        self._folds: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        if damaged is not None:
            # Until an operator has repaired the log, or accepted its loss, the fold of lost commits must not
            # stay.
            damaged.on_found = self.forget

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the fold of at least all commits that were stored when the call was made.

        Raises:
            LogDamaged: A commit is missing from the log, or the log is known to be damaged.
            Poison: A commit cannot be decoded.
        """
        if self._damaged is not None and (tenant, conversation_id) not in self._folds:
            # The server may have restarted, and this process does not know where the log ended.
            await self._damaged.checked.wait()
        self._check(tenant, conversation_id)
        try:
            return await self._folded(self.cached(tenant, conversation_id))
        except LogBroken:
            self.forget(tenant, conversation_id)
        try:
            # Fold from the start: the log of a deleted conversation was purged up to its tombstone.
            return await self._folded(Conversation(tenant, conversation_id))
        except LogBroken as broken:
            if self._damaged is None:
                raise
            raise await self._damaged.report(f"{tenant}.{conversation_id}", broken.problem) from broken

    async def append(
        self, state: Conversation, commit: events.Commit, *, folded: Conversation | None = None
    ) -> Conversation | None:
        """Store a commit that follows `state`, then a snapshot if one is due; None if another came first.

        `folded` is `state` after the events of the commit; None applies them once they are stored.

        Raises:
            LogDamaged: The last commit of `state` is lost, or the log is known to be damaged.
        """
        self._check(state.tenant, state.conversation_id)
        stored = await self._append(state, commit, folded)
        if isinstance(stored, AppendConflict):
            await self._check_end(state, stored)
            return None
        if not is_due(stored):
            return stored
        # The snapshot follows the commit, so that a failure to store it cannot affect the commit.
        return await self._snapshot(stored, commit.ts) or stored

    async def size(self, tenant: str, conversation_id: str, *, before: int) -> int:
        """Return the approximate number of bytes that `purge` will free, excluding the snapshot."""
        return await self._commits.size(tenant, conversation_id, before=before)

    async def purge(self, tenant: str, conversation_id: str, *, before: int) -> None:
        """Remove the snapshot, and the log before the tombstone or archive at sequence `before`."""
        await self._commits.purge(tenant, conversation_id, before=before)
        await self._snapshots.delete(tenant, conversation_id)

    async def remove_archive(self, tenant: str, conversation_id: str) -> None:
        """Remove the archived commits of a deleted conversation."""
        await self._commits.archived.remove(tenant, conversation_id)

    def cached(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the cached fold, which may be behind the log; an empty one if none is cached."""
        key = (tenant, conversation_id)
        if key in self._folds:
            self._folds.move_to_end(key)
            return self._folds[key]
        return Conversation(tenant, conversation_id)

    def forget(self, tenant: str, conversation_id: str) -> None:
        self._folds.pop((tenant, conversation_id), None)

    async def _folded(self, state: Conversation) -> Conversation:
        tenant, conversation_id = state.tenant, state.conversation_id
        if state.stream_seq and not await self._commits.more(tenant, conversation_id, after=state.stream_seq):
            return state
        last = await self._commits.last(tenant, conversation_id)
        if last is None:
            return state
        state = await self._snapshots.nearest(state, last)
        for stored in await self._tail(state, last):
            state = apply_commit(state, stored.stream_seq, stored.commit)
        return self._remember(state)

    async def _tail(self, state: Conversation, last: StoredCommit) -> list[StoredCommit]:
        if last.stream_seq <= state.stream_seq:
            return []
        if last.prev == state.stream_seq:
            # The usual case, one commit of another process: it was read already.
            return [last]
        # From the leader: a replica may be behind, and an incomplete tail would look like a damaged log.
        return await self._commits.read(
            state.tenant, state.conversation_id, after=state.stream_seq, leader=True
        )

    async def _append(
        self, state: Conversation, commit: events.Commit, folded: Conversation | None = None
    ) -> Conversation | AppendConflict:
        stored = await self._commits.append(
            state.tenant, state.conversation_id, commit, after=state.stream_seq, snapshot=state.snapshot_seq
        )
        if isinstance(stored, AppendConflict):
            return stored
        if folded is None:
            after = apply_commit(state, stored, commit)
        else:
            after = complete_commit(state, folded, stored, commit)
        log_commit(commit, after)
        return self._remember(after)

    async def _snapshot(self, state: Conversation, now: datetime) -> Conversation | None:
        """Append a snapshot; return the state after it, or None if it is not stored. Only logs errors."""
        try:
            # A snapshot only makes later folds faster, so it must not stop the run that the caller drives.
            async with asyncio.timeout(SNAPSHOT_S):
                snapshot = await self._snapshots.store(state)
                commit = snapshot_commit(state, snapshot, new_id("e"), now)
                stored = await self._append(state, commit)
        except (BanksmanError, TimeoutError) as error:
            logger.warning("%s: no snapshot was written: %s", state.conversation_id, error or "too slow")
            return None
        return None if isinstance(stored, AppendConflict) else stored

    def _check(self, tenant: str, conversation_id: str) -> None:
        if self._damaged and (damage := self._damaged.damage(tenant, conversation_id)):
            self.forget(tenant, conversation_id)
            raise damage

    async def _check_end(self, state: Conversation, conflict: AppendConflict) -> None:
        """Check after a conflict that the log did not lose its end: an owner would retry forever."""
        if conflict.last >= state.stream_seq:
            return
        logger.error("%s: commits up to %d are lost", state.conversation_id, state.stream_seq)
        self.forget(state.tenant, state.conversation_id)
        if self._damaged is None:
            return
        log = f"{state.tenant}.{state.conversation_id}"
        if found := await confirmed(self._bus, {log: state.stream_seq}):
            raise await self._damaged.report(log, found[log])

    def _remember(self, state: Conversation) -> Conversation:
        key = (state.tenant, state.conversation_id)
        known = self._folds.get(key)
        # A slow read must not replace a newer fold.
        if known is None or known.stream_seq <= state.stream_seq:
            self._folds[key] = state
        self._folds.move_to_end(key)
        if len(self._folds) > self._cached:
            self._folds.popitem(last=False)
        return state


OUTPUT_CHARS = 2_000
"""Characters of a model's reply that are logged, at level debug only."""

_EXPECTED = frozenset({"completed", "cancelled", "rejected"})
"""Outcomes that a user or the model chose; other outcomes are logged as warnings."""


def log_commit(commit: events.Commit, state: Conversation) -> None:
    """Log the parts of a stored commit that an operator needs (R7, R31, R32, R89, R91).

    A run writes one line when an agent claims it, one for each reply with calls, and one at its end. There
    are no more, because each line takes 35 µs of an agent's CPU time, and the launcher writes it to a file.
    """
    if commit.claim and state.run is not None:
        extra = {"run_id": state.run.run_id, "iteration": state.run.iteration}
        logger.info("this agent drives the run", extra=extra)
    calls = Counter(
        (e.run_id, e.iteration) for e in commit.events if isinstance(e.data, events.ToolCallRequested)
    )
    for (run_id, iteration), count in calls.items():
        extra = {"run_id": run_id, "iteration": iteration, "calls": count}
        logger.info("the model requested calls", extra=extra)
    for event in commit.events:
        _log_event(event)


def _log_event(event: events.Event) -> None:
    run_id, data = event.run_id, event.data
    match data:
        case events.RunFinished(status=status, error=error):
            level = logging.INFO if status in _EXPECTED else logging.WARNING
            code = error.code.value if error else None
            extra = {"run_id": run_id, "status": status, "code": code, "iterations": data.iterations}
            logger.log(level, "the run ended: %s", code or status, extra=extra)
        case events.ProtocolRetry(attempt=attempt, error=error, reply=reply):
            extra = {"run_id": run_id, "iteration": event.iteration, "attempt": attempt, "error": error}
            logger.warning("the model's call could not be read", extra=extra)
            _log_output(run_id, reply)
        case events.MessageCompleted(role="assistant", content=content) if content is not None:
            _log_output(run_id, text_of(content))
        case _:
            return


def _log_output(run_id: str | None, text: str) -> None:
    logger.debug("the model wrote", extra={"run_id": run_id, "text": text[:OUTPUT_CHARS]})
