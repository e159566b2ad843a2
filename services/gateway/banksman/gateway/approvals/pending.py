"""The open approval requests of a tenant: lists them, sets them aside, and notifies of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Query

from banksman.bus.connection import Bus
from banksman.bus.messages import BusSubscription, Message, StoredMessage
from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ASIDE, FIRST, ApprovalSlots
from banksman.bus.storage.slots import decode_slot
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict, NotFound, Poison
from banksman.contracts.ids import check_token
from banksman.contracts.work import ApprovalRequest, EscalateApproval, FirstApproval, SetAside
from banksman.gateway.approvals import bodies
from banksman.gateway.approvals.stored_replies import readable
from banksman.gateway.conversations.conversations import Conversations, read_all
from banksman.gateway.conversations.views import approved_first, sent_items
from banksman.gateway.operation.caller import APPROVE
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import MAX_POSITION, CallerDep, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.runs.ports import Clock

GATHER_S = 0.25
"""Seconds in which several changes become one notice. A core message may arrive before its change is stored,
so a list that is read at once could miss the change."""

N = TypeVar("N", FirstApproval, SetAside)
OnChange = Callable[[], None]
"""Called after a change; must not block."""


MAX_PENDING = 1_000

Limit = Annotated[int, Query(ge=1, le=MAX_PENDING)]
After = Annotated[int, Query(ge=0, le=MAX_POSITION)]

operations = Operations("approvals")


@dataclass(eq=False)
class _Tenant:
    """The core subscriptions of one tenant, for all websockets of this process."""

    followers: set[OnChange] = field(default_factory=set[OnChange])
    subscriptions: list[BusSubscription] = field(default_factory=list[BusSubscription])
    notice: asyncio.TimerHandle | None = None
    # Subscribing waits for the server: without a lock, two concurrent followers would subscribe twice.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def received(self, _: Message) -> None:
        """Notify the followers after `GATHER_S`, once for all messages until then."""
        if self.notice is None:
            self.notice = asyncio.get_running_loop().call_later(GATHER_S, self.notify)

    def notify(self) -> None:
        self.notice = None
        for follower in tuple(self.followers):
            follower()


@dataclass(frozen=True, slots=True, eq=False)
class PendingApprovals:
    bus: Bus
    slots: ApprovalSlots
    conversations: Conversations
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    _tenants: dict[str, _Tenant] = field(default_factory=dict[str, _Tenant])

    def __post_init__(self) -> None:
        self.bus.on_reconnect(self._notify_all)

    @operations.add("approval.list", "GET /context/approvals")
    async def list_approvals(
        self: Service, caller: CallerDep, limit: Limit = MAX_PENDING, after: After = 0
    ) -> bodies.ApprovalPage:
        """List the tenant's open approval requests, oldest first; `next` is `after` of the next page."""
        tenant = caller.tenant
        pending = await self.slots.pending(tenant, limit=limit, after=after)
        notes = await self.slots.notes(tenant) if pending else {}
        now = self.clock.now()
        ids = {one.request.conversation_id for one in pending}
        conversations = dict(zip(ids, await read_all(partial(self._conversation, tenant), ids), strict=True))
        items = tuple(
            bodies.PendingApproval(
                requested_at=datetime.fromisoformat(one.stored_at),
                title=title,
                requested_by=creator,
                **{name: value for name, value in one.request if name != "items"},
                **_noted(one.request, notes.get(one.request.approval_id, {}), caller.user, now),
            )
            for one in pending
            if not self.conversations.limited.hides(caller, one.request.conversation_id)
            for title, creator in (conversations[one.request.conversation_id],)
        )
        return bodies.ApprovalPage(
            items=items, next=pending[-1].stream_seq if len(pending) == limit else None
        )

    @operations.add("input.list", "GET /context/inputs")
    async def list_inputs(
        self: Service, caller: CallerDep, limit: Limit = MAX_PENDING, after: After = 0
    ) -> bodies.InputPage:
        """List the values that workflows wait for, oldest first; `next` is `after` of the next page."""
        pending = await self.slots.pending(caller.tenant, limit=limit, after=after, inputs=True)
        items = (
            {**one.request.input.model_dump(by_alias=True), **dict(one.request)}
            for one in pending
            if one.request.input is not None
            and not self.conversations.limited.hides(caller, one.request.conversation_id)
        )
        return bodies.InputPage(
            items=tuple(bodies.PendingInput.model_validate(item) for item in items),
            next=pending[-1].stream_seq if len(pending) == limit else None,
        )

    async def _conversation(self, tenant: str, conversation_id: str) -> tuple[str, str]:
        """Return title and creator."""
        try:
            record = await self.conversations.get(tenant, conversation_id)
        except BanksmanError:
            # A conversation that was deleted must not hide the requests of others.
            return "", ""
        return record.title, record.created_by

    async def follow(self, tenant: str, on_change: OnChange) -> None:
        """Call `on_change` after each change of the tenant's open requests, and after a reconnect."""
        followed = self._tenants.setdefault(tenant, _Tenant())
        followed.followers.add(on_change)
        async with followed.turn:
            if not followed.subscriptions:
                for subject in (
                    subjects.approval_request(tenant, subjects.ANY),
                    subjects.approval_reply(tenant, subjects.ANY),
                    subjects.approval_note(tenant, subjects.ANY, subjects.ANY),
                ):
                    subscription = await self.bus.subscribe(subject, followed.received)
                    followed.subscriptions.append(subscription)

    async def leave(self, tenant: str, on_change: OnChange) -> None:
        followed = self._tenants.get(tenant)
        if followed is None:
            return
        followed.followers.discard(on_change)
        async with followed.turn:
            if not followed.followers and self._tenants.pop(tenant, None) is followed:
                for subscription in followed.subscriptions:
                    await subscription.unsubscribe()

    @operations.add(
        "approval.aside",
        "POST /context/approvals/{approval_id}/aside",
        right=APPROVE,
        errors=(MISSING, CONFLICT, EARLY),
    )
    async def set_approval_aside(self: Service, approval_id: str, caller: CallerDep) -> None:
        """Remove an approval request from the caller's inbox. It stays open, and may be escalated."""
        check_token(approval_id, "approval_id")
        request, reply = await readable(self.slots, caller.tenant, approval_id)
        if request is None or request.input is not None:
            raise NotFound("approval", approval_id)
        if reply is not None:
            raise Conflict(f"approval {approval_id!r} is decided")
        aside = SetAside(by=caller.user, at=self.clock.now())
        await self.slots.set_aside(caller.tenant, approval_id, aside)
        escalation = request.terms and request.terms.escalation
        if escalation and escalation.when_set_aside:
            await self.backlog.check_signal(caller.tenant)
            signal = EscalateApproval(
                tenant=caller.tenant,
                conversation_id=request.conversation_id,
                approval_id=approval_id,
                by=caller.user,
            )
            await self.queue.signal(signal, f"escalate-{approval_id}")

    def _notify_all(self) -> None:
        # Messages that were published while the connection was down are lost.
        for followed in self._tenants.values():
            followed.notify()


Service = Annotated[PendingApprovals, provided(PendingApprovals)]


def _noted(
    request: ApprovalRequest, notes: Mapping[str, StoredMessage], user: str, now: datetime
) -> dict[str, Any]:
    aside = [one for name, note in notes.items() if name.startswith(ASIDE) and (one := _read(SetAside, note))]
    first = _read(FirstApproval, notes[FIRST]) if FIRST in notes else None
    escalation = request.terms and request.terms.escalation
    due = request.escalates_at is not None and request.escalates_at <= now
    escalated = due or bool(escalation and escalation.when_set_aside and aside)
    by = tuple(sorted(one.by for one in aside))
    # Users named by the escalation see the request after it; others see it unless they set it aside.
    named = escalation is not None and user in escalation.users
    return {
        "items": sent_items(request.items, first),
        "first": first and approved_first(first),
        "escalated": escalated,
        "set_aside_by": by,
        "for_you": escalated if named else user not in by,
    }


def _read(model: type[N], note: StoredMessage) -> N | None:
    try:
        return decode_slot(model, note.subject, note.data)
    except Poison:
        # A later decision reports the unreadable entry; the list must still show the request.
        return None
