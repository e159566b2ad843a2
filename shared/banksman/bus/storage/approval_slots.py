"""The two slots of an approval, for its request and its reply, and the timers of both.

Writes raise what `durable` raises. Reads raise `Unavailable` if the broker does not respond, and `Poison` for
a stored message that cannot be decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from pydantic import BaseModel

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.dead import UnreadableMessages, dead_letter_stored
from banksman.bus.messages import StoredMessage, StreamMessage
from banksman.bus.names import APPROVALS
from banksman.bus.publish import schedule
from banksman.bus.storage.slots import decode_slot, store_slot
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.ids import conversation_of_approval, digest, new_id
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval, LinkUse, SetAside
from banksman.runtime.failpoints import reach

T = TypeVar("T", bound=BaseModel)

ESCALATION_TIMER = "escalation"
"""The kind of the timers that escalate approval requests."""
EXPIRY_TIMER = "approval"
"""The kind of the timers that expire approval requests."""
REMOVAL_TIMER = "answered"
"""The kind of the timers that remove approvals after their reply is committed."""


FIRST = "first"
"""The name of the note with the first of two approvals."""
ASIDE = "aside-"
"""Prefix of the names of notes of users who set a request aside."""


@dataclass(frozen=True, slots=True)
class TimerName:
    kind: str
    tenant: str
    timer_id: str


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A stored request without a reply."""

    stream_seq: int
    stored_at: str
    """RFC 3339."""
    request: ApprovalRequest


async def set_timer(
    bus: Bus, kind: str, tenant: str, timer_id: str, *, at: datetime, payload: bytes = b""
) -> None:
    """Schedule the delivery of `payload` to the durable `timers`; a time in the past delivers at once.

    Setting a timer again replaces it. A timer that is set again after it fired fires again.
    """
    target = subjects.timer_fired(kind, tenant, timer_id)
    await schedule(bus, subjects.timer_set(kind, tenant, timer_id), target, at=at, payload=payload)


def fired_timer(subject: str) -> TimerName:
    """Parse the subject of a fired timer; raise `Poison` if it is another subject."""
    match subject.split("."):
        case ["timer", "fired", kind, tenant, timer_id]:
            return TimerName(kind, tenant, timer_id)
        case _:
            raise Poison(subject, "the subject is not that of a fired timer")


class ApprovalSlots:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._unreadable = UnreadableMessages(bus, APPROVALS)

    async def publish_request(self, request: ApprovalRequest) -> None:
        """Store a request and schedule its expiry and escalation. Repeats change nothing."""
        await reach("agent.before_approval_request")
        await self.store_request(request)
        payload = request.model_dump_json(include={"tenant", "conversation_id", "approval_id"}).encode()
        timers = ((EXPIRY_TIMER, request.expires_at), (ESCALATION_TIMER, request.escalates_at))
        for kind, at in timers:
            if at is not None:
                await set_timer(self._bus, kind, request.tenant, request.approval_id, at=at, payload=payload)

    async def store_request(self, request: ApprovalRequest) -> ApprovalRequest:
        """Store a request unless the slot holds one; return the stored request."""
        subject = subjects.approval_request(request.tenant, request.approval_id)
        return await self._store(subject, request, "ask")

    async def store_reply(self, reply: ApprovalReply) -> ApprovalReply:
        """Store a reply unless the slot holds one; return the stored reply."""
        subject = subjects.approval_reply(reply.tenant, reply.approval_id)
        return await self._store(subject, reply, new_id("answer-"))

    async def store_first(self, first: FirstApproval) -> FirstApproval:
        """Store the first of two approvals unless one is stored; return the stored approval."""
        subject = subjects.approval_note(first.tenant, first.approval_id, FIRST)
        return await self._store(subject, first, new_id("first-"))

    async def first(self, tenant: str, approval_id: str) -> FirstApproval | None:
        """Return the first of two approvals; None if no user approved yet."""
        return await self._read(FirstApproval, subjects.approval_note(tenant, approval_id, FIRST))

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """Return the stored request and the stored reply, as the leader of their stream has them."""
        return (
            await self._read(ApprovalRequest, subjects.approval_request(tenant, approval_id)),
            await self._read(ApprovalReply, subjects.approval_reply(tenant, approval_id)),
        )

    async def pending(
        self, tenant: str = subjects.ANY, *, limit: int | None = None, after: int = 0, inputs: bool = False
    ) -> list[PendingRequest]:
        """Return the requests without a reply, oldest first.

        Args:
            tenant: The tenant; `subjects.ANY` for all.
            limit: Maximum number of requests to return; None for all.
            after: Only requests with a higher stream sequence.
            inputs: True returns requests for a value, False requests that list calls.
        """
        # Replies are read first and may be missed, so a request that is replied to in between can be
        # returned; the slot of its reply still accepts only one decision.
        any_request = subjects.approval_request(tenant, subjects.ANY)
        any_reply = subjects.approval_reply(tenant, subjects.ANY)
        replied = {
            message.subject.rpartition(".")[2]
            async for message in jetstream.read(self._bus, APPROVALS, any_reply, current=True)
        }
        found: list[PendingRequest] = []
        async for message in jetstream.read(self._bus, APPROVALS, any_request, after=after, current=True):
            if limit is not None and len(found) == limit:
                break
            if message.subject.rpartition(".")[2] not in replied:
                try:
                    request = decode_slot(ApprovalRequest, message.subject, message.data)
                except Poison as poison:
                    # One unreadable request must not hide the others.
                    await self._unreadable.report(message, poison.reason)
                    continue
                if (request.input is not None) == inputs:
                    found.append(PendingRequest(message.stream_seq, message.time, request))
        return found

    async def set_aside(self, tenant: str, approval_id: str, aside: SetAside) -> None:
        """Record that a user set a request aside. Repeats change nothing."""
        name = f"{ASIDE}{digest(aside.by.encode())[:32]}"
        subject = subjects.approval_note(tenant, approval_id, name)
        await self._store(subject, aside, new_id("aside-"))

    async def use_link(self, tenant: str, approval_id: str, link: str, use: LinkUse) -> LinkUse:
        """Store the use of a link unless a use is stored; return the stored use."""
        subject = subjects.approval_note(tenant, approval_id, f"link-{link}")
        return await self._store(subject, use, new_id("link-"))

    async def notes(self, tenant: str) -> dict[str, dict[str, StoredMessage]]:
        """Return the notes on a tenant's requests, by approval id and name."""
        found: dict[str, dict[str, StoredMessage]] = {}
        every = subjects.approval_note(tenant, subjects.ANY, subjects.ANY)
        async for message in jetstream.read(self._bus, APPROVALS, every, current=True):
            approval_id, name = message.subject.split(".")[3:]
            found.setdefault(approval_id, {})[name] = message
        return found

    async def discard_reply(self, reply: ApprovalReply, reason: str) -> None:
        """Dead-letter an invalid reply and empty its slot, unless the slot already holds another reply."""
        subject = subjects.approval_reply(reply.tenant, reply.approval_id)
        message = await jetstream.last_message(self._bus, APPROVALS, subject)
        if message is None or decode_slot(ApprovalReply, subject, message.data) != reply:
            return
        await self.discard(message, reason)

    async def discard(self, message: StreamMessage, reason: str) -> None:
        """Dead-letter a reply, and empty its slot."""
        # Stored in DEAD before it is deleted, so that a crash cannot lose it.
        await dead_letter_stored(self._bus, APPROVALS, message, reason)
        await jetstream.delete_message(self._bus, APPROVALS, message.stream_seq)

    async def schedule_removal(self, tenant: str, approval_id: str, payload: bytes, *, at: datetime) -> None:
        await set_timer(self._bus, REMOVAL_TIMER, tenant, approval_id, at=at, payload=payload)

    async def forget(self, tenant: str, approval_id: str) -> None:
        """Remove a request whose reply is committed, and then the reply."""
        for subject in (
            subjects.approval_request(tenant, approval_id),
            subjects.approval_note(tenant, approval_id, subjects.ANY),
            # The reply last: a request without a reply would count as pending.
            subjects.approval_reply(tenant, approval_id),
        ):
            await jetstream.purge_subject(self._bus, APPROVALS, subject)

    async def forget_conversation(self, tenant: str, conversation_id: str) -> None:
        """Remove the requests of a conversation with their replies and notes, decided or not."""
        every = subjects.approval_request(tenant, subjects.ANY)
        names = [name async for name, _ in jetstream.subjects_in(self._bus, APPROVALS, every)]
        for approval_id in (name.rpartition(".")[2] for name in names):
            if conversation_of_approval(approval_id) == conversation_id:
                await self.forget(tenant, approval_id)

    async def _store(self, subject: str, value: T, writer: str) -> T:
        """Store a value unless the slot holds one; return the stored value."""
        written = await store_slot(self._bus, APPROVALS, subject, value, writer)
        return written.stored or value

    async def _read(self, model: type[T], subject: str) -> T | None:
        message = await jetstream.last_message(self._bus, APPROVALS, subject)
        return message and decode_slot(model, subject, message.data)
