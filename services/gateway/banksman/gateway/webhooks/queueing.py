"""Queues messages for the events in the logs that a tenant's webhooks select."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import get_args

from pydantic_core import to_json

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letter
from banksman.bus.jetstream import count_below
from banksman.bus.names import EVENTS, WEBHOOK_QUEUE, WEBHOOKS
from banksman.bus.publish import durable
from banksman.bus.queues.work import Done, Outcome, WorkMessage, work
from banksman.bus.storage.log import stored_commit
from banksman.contracts import subjects
from banksman.contracts.approvals import ApprovalEscalated, ApprovalRequested
from banksman.contracts.event_frames import event_data
from banksman.contracts.events import Event
from banksman.contracts.ids import digest, new_id
from banksman.contracts.wire import JsonValue
from banksman.contracts.work import FirstApproval
from banksman.deployment.streams import write_consumer
from banksman.deployment.topology import webhook_consumer
from banksman.gateway.approvals.links import ApprovalLink, digest_of_calls, signed_link
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.conversations.views import StoredEvents
from banksman.gateway.live.event_frames import encoded_event
from banksman.gateway.webhooks.chat import message_body
from banksman.gateway.webhooks.store import (
    TEST_EVENT,
    Delivery,
    QueuedDelivery,
    Webhook,
    WebhookEvent,
    WebhookStore,
)

SLOTS = 4
"""Commits that a gateway handles concurrently."""
EVENT_TYPES = frozenset(get_args(WebhookEvent))
MAX_WAITING = 1_000
"""Maximum pending messages of one tenant; further ones are dead-lettered, and can be replayed."""
GRACE_S = 2.0
"""Seconds for commits in progress to finish when the last webhook is deleted or the gateway stops."""


def reaches(limited: LimitedConversations, receiver: Webhook, conversation_id: str) -> bool:
    """Return whether a receiver gets the events of a conversation: the user who created it may see it."""
    return limited.admits(receiver.tenant, receiver.created_by, conversation_id)


class WebhookQueue:
    """Queues a message for each event that a webhook selects.

    The broker delivers only the commits of tenants with webhooks, each to one gateway, which acknowledges the
    commit after storing its messages. Without a webhook, no gateway requests commits.
    """

    def __init__(
        self, bus: Bus, store: WebhookStore, signing_key: bytes, limited: LimitedConversations
    ) -> None:
        self._bus = bus
        self._limited = limited
        self._key = signing_key
        self._store = store
        self._followed: list[str] | None = None
        """The tenants in the filter of the consumer, as last written by this gateway."""
        self._following = asyncio.Lock()
        """Lets one request at a time write the consumer: an older list must not replace a newer one."""

    async def follow(self) -> None:
        """Let the broker deliver the commits of every tenant that has a webhook."""
        async with self._following:
            stored = sorted({key.partition(".")[0] for key in await self._store.bucket.keys()})
            if stored != self._followed:
                consumer = webhook_consumer(stored, replicas=self._bus.settings.replicas)
                await write_consumer(self._bus, consumer)
                self._followed = stored

    async def run(self) -> None:
        """Queue messages while webhooks exist; never returns."""
        while True:
            await self._store.view.wait_for(lambda view: bool(view.entries()))
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(stop))
                await self.follow()
                await work(
                    self._bus, EVENTS, WEBHOOKS, self.on_commit, slots=SLOTS, stop=stop, grace_s=GRACE_S
                )

    async def on_commit(self, message: WorkMessage) -> Outcome:
        """Queue the events of a commit. Safe to run twice: a message's id is derived from its event."""
        stored = stored_commit(message)
        _, tenant, conversation_id = message.subject.split(".")
        if events := [event for event in stored.commit.events if event.data.type in EVENT_TYPES]:
            # Read from the leader: the view may lack a webhook whose creation was already acknowledged.
            receivers = await self._store.receivers(tenant)
            for event in events:
                for receiver in receivers:
                    if _selects(receiver, event) and _is_later(receiver, event, message.stream_seq):
                        await self._put(receiver, conversation_id, stored.commit.log_epoch, event)
        return Done()

    async def catch_up(self, receiver: Webhook, conversation_id: str, events: StoredEvents) -> None:
        """Queue the newest event that a receiver selects among the events before its creation."""
        for event in [one for one in events.events if _selects(receiver, one)][-1:]:
            await self._put(receiver, conversation_id, events.log_epoch, event)

    async def _put(self, webhook: Webhook, conversation_id: str, log_epoch: str, event: Event) -> None:
        frame = json.loads(encoded_event(event, conversation_id, log_epoch, event.seq - 1))
        ids = {"conversation_id": conversation_id, "run_id": event.run_id, "seq": event.seq}
        await self._queue(webhook, f"{conversation_id}\n{log_epoch}\n{event.seq}", event, frame["data"] | ids)

    async def on_first(self, first: FirstApproval, sent: ApprovalRequested) -> None:
        """Queue an approval request again if the first of two users changed what the second one approves."""
        if tuple(item.digest for item in sent.items) == first.digests:
            return
        event = Event(seq=1, ts=first.decided_at, run_id=first.run_id, data=sent)
        data = event_data(event) | {"conversation_id": first.conversation_id, "run_id": first.run_id}
        for receiver in await self._store.receivers(first.tenant):
            own = receiver.device is not None and receiver.created_by == first.by
            if _selects(receiver, event) and not own:
                await self._queue(receiver, f"{first.approval_id}\n{first.answer_id}", event, data)

    async def _queue(self, webhook: Webhook, source: str, event: Event, data: dict[str, JsonValue]) -> None:
        if not reaches(self._limited, webhook, str(data["conversation_id"])):
            return
        source = f"{webhook.id}\n{source}"
        message_id = f"msg-{digest(source.encode())[:32]}"
        link = _link(webhook, event, self._key)
        await self.put(_queued(webhook, message_id, event.data.type, event.ts, data, link))

    async def put(self, message: QueuedDelivery) -> None:
        subject = subjects.webhook_delivery(message.tenant, message.webhook_id)
        payload = message.model_dump_json().encode()
        state = Delivery(id=message.id, type=message.type, status="pending", created_at=message.created_at)
        below = subjects.all_of("webhook", message.tenant)
        if await count_below(self._bus, WEBHOOK_QUEUE, below) < MAX_WAITING:
            # Stored before the message, so that it cannot replace the state of an attempt to deliver it.
            await self._store.note(message, state)
            await durable(self._bus, subject, payload, msg_id=message.id)
            return
        reason = f"webhook queue: {MAX_WAITING} messages of {message.tenant} wait for delivery"
        await dead_letter(
            self._bus,
            subject=subject,
            stream=WEBHOOK_QUEUE,
            stream_seq=time.time_ns(),
            reason=reason,
            payload=payload,
        )
        await self._store.note(message, state.model_copy(update={"status": "failed", "error": reason}))

    async def _watch(self, stop: asyncio.Event) -> None:
        """Update the consumer when the set of tenants with webhooks changes; set `stop` when it is empty."""
        while known := self._store.tenants():
            await self._store.view.wait_for(lambda _, known=known: self._store.tenants() != known)
            await self.follow()
        stop.set()


def _is_later(receiver: Webhook, event: Event, stream_seq: int) -> bool:
    after = receiver.after_seq
    return event.ts >= receiver.created_at if after is None else stream_seq > after


def _selects(receiver: Webhook, event: Event) -> bool:
    if event.imported or event.data.type not in receiver.events:
        return False
    if receiver.task is not None:
        return receiver.task.run_id == event.run_id
    return receiver.device is None or is_for(receiver.created_by, event)


def is_for(user: str, event: Event) -> bool:
    """Return whether a user is notified of an event. Users of an escalation are not notified before it."""
    match event.data:
        case ApprovalRequested(terms=terms):
            escalation = terms.escalation if terms else None
            return escalation is None or user not in escalation.users
        case ApprovalEscalated(users=users):
            return not users or user in users
        case _:
            return False


def test_message(webhook: Webhook, now: datetime) -> QueuedDelivery:
    return _queued(webhook, new_id("msg-"), TEST_EVENT, now, {"webhook_id": webhook.id})


def _queued(
    webhook: Webhook, message_id: str, kind: str, at: datetime, data: dict[str, JsonValue], link: str = ""
) -> QueuedDelivery:
    body = message_body(webhook, kind, at, data, link)
    return QueuedDelivery(
        id=message_id,
        tenant=webhook.tenant,
        webhook_id=webhook.id,
        type=kind,
        created_at=at,
        conversation_id=str(data.get("conversation_id", "")),
        body=to_json(body).decode(),
    )


def _link(webhook: Webhook, event: Event, key: bytes) -> str:
    if not isinstance(event.data, ApprovalRequested):
        return ""
    link = ApprovalLink(
        tenant=webhook.tenant,
        approval_id=event.data.approval_id,
        calls=digest_of_calls([item.digest for item in event.data.items]),
        recipient=webhook.id,
        expires_at=event.data.expires_at,
    )
    return signed_link(link, key)
