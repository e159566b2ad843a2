"""Reads conversations: the fold of each log is cached, and updated with every read.

After the first of two approvals, an approver is sent the request with what the first one changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import EventLog, StoredCommit
from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalRequested,
    ApprovedFirst,
    ItemDecision,
    Remember,
    sent_digest,
)
from banksman.contracts.errors import Poison
from banksman.contracts.events import Event
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import FirstApproval
from banksman.gateway.conversations.view import ConversationView
from banksman.log_integrity.damage import DamagedLogs
from banksman.runs.approval.policy import approval_item, coverage
from banksman.runs.fold import apply_commit
from banksman.runs.state import Conversation


def sent_items(items: Iterable[ApprovalItem], first: FirstApproval | None) -> tuple[ApprovalItem, ...]:
    """Return the calls as they run if the approver agrees; their digests cover the first approval too."""
    decided = {one.tool_call_id: one for one in first.decisions} if first else {}
    remember = first and first.remember
    return tuple(_sent(item, decided.get(item.tool_call_id), remember) for item in items)


def approved_first(first: FirstApproval) -> ApprovedFirst:
    return ApprovedFirst(**{name: getattr(first, name) for name in ApprovedFirst.model_fields})


async def as_sent(bus: Bus, tenant: str, view: ConversationView) -> ConversationView:
    """Return a view with its open approval requests as they are sent now."""
    if not any(one.requested.terms for one in view.approvals.values()):
        return view
    slots = ApprovalSlots(bus)
    sent = {
        key: replace(one, requested=await _requested(slots, tenant, one.requested))
        for key, one in tuple(view.approvals.items())
    }
    return replace(view, approvals=sent)


async def _requested(slots: ApprovalSlots, tenant: str, requested: ApprovalRequested) -> ApprovalRequested:
    if requested.terms is None or requested.terms.approvers == 1:
        return requested
    try:
        first = await slots.first(tenant, requested.approval_id)
    except Poison:
        # A decision reports it.
        first = None
    if first is None:
        return requested
    changes = {"items": sent_items(requested.items, first), "first": approved_first(first)}
    return requested.model_copy(update=changes)


def _sent(item: ApprovalItem, decided: ItemDecision | None, remember: Remember | None) -> ApprovalItem:
    if item.covers is None:
        item = item.model_copy(update={"covers": coverage(item.name, item.arguments)})
    if decided is None:
        return item
    sent = item if decided.arguments is None else _edited(item, decided.arguments)
    covers = coverage(sent.name, sent.arguments, decided.covers)
    choices = (decided.decision, remember, decided.covers, decided.on_reject)
    return sent.model_copy(update={"digest": sent_digest(sent.digest, *choices), "covers": covers})


def _edited(item: ApprovalItem, arguments: JsonObject) -> ApprovalItem:
    call = ToolCall(id=item.tool_call_id, name=item.name, arguments=arguments, network=item.network)
    same_file = arguments.get("path") == item.arguments.get("path")
    edited = approval_item(call, old_content=item.preview.old if same_file else None)
    return edited.model_copy(update={"requested": item.arguments, "editable": item.editable})


CACHED_VIEWS = 2_000
"""Cached views, some kilobytes each. The least recently used ones are dropped, and folded again on demand."""


@dataclass(frozen=True, slots=True)
class StoredEvents:
    head_seq: int
    oldest_seq: int
    log_epoch: str
    events: tuple[Event, ...]
    last_seq: int
    """Number up to which the log was read: of the last event, or `after_seq` if none follows it."""


@dataclass
class _CachedView:
    view: ConversationView = field(default_factory=ConversationView)
    # Without the lock, two concurrent reads would both fold the same new commits into the view.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Views:
    """Caches the views of the conversations that were read last. Reads raise `LogDamaged`."""

    def __init__(
        self, log: EventLog, *, damaged: DamagedLogs | None = None, size: int = CACHED_VIEWS
    ) -> None:
        self.log = log
        self._damaged = damaged
        self._size = size
        self._cache: OrderedDict[tuple[str, str], _CachedView] = OrderedDict()

    async def read(self, tenant: str, conversation_id: str) -> ConversationView:
        """Return the view of everything that is stored when this is called."""
        cached = self._cached(tenant, conversation_id)
        try:
            async with cached.turn:
                await self._read_more(tenant, conversation_id, cached)
                return cached.view
        except Poison as poison:
            raise LogDamaged(conversation_id, poison.reason) from poison

    async def as_sent(self, tenant: str, conversation_id: str) -> ConversationView:
        """Return what `read` returns, with its open approval requests as an approver is sent them now."""
        return await as_sent(self.log.bus, tenant, await self.read(tenant, conversation_id))

    async def events(
        self, tenant: str, conversation_id: str, *, after_seq: int, limit: int | None = None
    ) -> StoredEvents:
        """Return the next `limit` events after `after_seq`, or all up to the present head, in order."""
        view = await self.read(tenant, conversation_id)
        head = view.last_seq
        page = StoredEvents(head, view.oldest_seq, view.log_epoch, (), after_seq)
        if head <= after_seq:
            return page
        last = min(head, max(after_seq, view.oldest_seq - 1) + limit) if limit else head
        commits = await self.log.read(
            tenant, conversation_id, after=view.position(after_seq), leader=True, through_seq=last
        )
        stored = (event for commit in commits for event in commit.commit.events)
        return replace(page, events=tuple(e for e in stored if after_seq < e.seq <= last), last_seq=last)

    async def state(self, tenant: str, conversation_id: str) -> Conversation:
        """Return the complete fold of a log, as agents compute it. Reads the log from its beginning."""
        state = Conversation(tenant, conversation_id)
        for stored in await self.log.read(tenant, conversation_id, leader=True):
            state = apply_commit(state, stored.stream_seq, stored.commit)
        return state

    def damage(self, tenant: str, conversation_id: str) -> LogDamaged | None:
        """Return the known damage of a log; None if none is known."""
        return self._damaged and self._damaged.damage(tenant, conversation_id)

    async def check_complete(self, tenant: str, conversation_id: str) -> None:
        """Raise `LogDamaged` if a log lacks events: a model must not continue from a part."""
        if damage := self.damage(tenant, conversation_id):
            raise damage
        view = await self.read(tenant, conversation_id)
        if view.oldest_seq != 1 and not view.deleted:
            raise LogDamaged(conversation_id, f"it begins with event {view.oldest_seq}")

    async def commit(self, tenant: str, conversation_id: str, stream_seq: int) -> StoredCommit | None:
        """Return one stored commit; None if it is no longer stored."""
        return await self.log.at(tenant, conversation_id, stream_seq)

    def known(self, tenant: str, conversation_id: str) -> ConversationView:
        """Return the view of the last `read` or `note`, which may be behind the log."""
        return self._cached(tenant, conversation_id).view

    def note(self, tenant: str, conversation_id: str, stored: StoredCommit) -> None:
        """Fold a commit that arrived live, if it is the next one of the view."""
        cached = self._cached(tenant, conversation_id)
        is_next = stored.prev == cached.view.stream_seq
        same_log = cached.view.log_epoch in ("", stored.commit.log_epoch)
        # Skipped during a read, which would fold the same commit again.
        if is_next and same_log and not cached.turn.locked():
            cached.view.apply(stored)

    def forget(self, tenant: str, conversation_id: str) -> None:
        """Drop the view of a conversation: it was deleted, or its log is damaged."""
        self._cache.pop((tenant, conversation_id), None)

    async def _read_more(self, tenant: str, conversation_id: str, cached: _CachedView) -> None:
        after = cached.view.stream_seq
        # Usually nothing is new, which takes one request instead of two.
        if after and not await self.log.more(tenant, conversation_id, after=after):
            return
        # Read from the leader: a follower may lack a commit that the client already knows.
        commits = await self.log.read(tenant, conversation_id, after=after, leader=True)
        if commits and after and commits[0].commit.log_epoch != cached.view.log_epoch:
            # The log was restored from a backup: positions of the earlier log are invalid in it.
            cached.view = ConversationView()
            commits = await self.log.read(tenant, conversation_id, leader=True)
        for stored in commits:
            cached.view.apply(stored)

    def _cached(self, tenant: str, conversation_id: str) -> _CachedView:
        key = (tenant, conversation_id)
        cached = self._cache.setdefault(key, _CachedView())
        self._cache.move_to_end(key)
        while len(self._cache) > self._size:
            self._cache.popitem(last=False)
        return cached
