"""Delivers queued messages to their receivers: retries with back-off for a day, then dead-letters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pydantic import TypeAdapter

from banksman.bus.connection import Bus
from banksman.bus.names import WEBHOOK_QUEUE, WEBHOOKS
from banksman.bus.queues.handling import decoded
from banksman.bus.queues.work import Done, Later, Outcome, WorkMessage, work
from banksman.contracts.errors import NotFound, Poison
from banksman.contracts.urls import parse_url
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.webhooks.devices import Devices
from banksman.gateway.webhooks.queueing import reaches
from banksman.gateway.webhooks.sending import Sender, recipient
from banksman.gateway.webhooks.store import Delivery, DeliveryStatus, QueuedDelivery, Webhook, WebhookStore
from banksman.quotas.rates import Rates
from banksman.runs.ports import Clock

SLOTS = 32
"""Concurrent attempts of a gateway."""
SLOTS_PER_TENANT = 4
"""Concurrent attempts for one tenant, so that slow receivers of one tenant do not delay others."""
BUSY_S = 2.0
"""Seconds until the redelivery of a message whose tenant has all its attempts in progress."""
GIVEN_UP_AFTER = timedelta(hours=24)
GIVEN_UP_TO_DEVICE_AFTER = timedelta(hours=1)
"""Time after which attempts to notify a device end: the request is in the inbox anyway."""
PAUSES_S = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
"""Seconds of pause after the first, second, … failed attempt. The last one also follows all further ones."""
ENDED_SUBSCRIPTION = (404, 410)
"""Statuses with which a push service responds for a subscription that has ended (RFC 8030)."""


@dataclass(frozen=True, slots=True)
class WebhookDeliveries:
    bus: Bus
    store: WebhookStore
    devices: Devices
    sender: Sender
    recipients: Recipients
    clock: Clock
    limited: LimitedConversations
    _sending: Counter[str] = field(default_factory=Counter[str])
    """Attempts in progress by tenant."""

    async def run(self) -> None:
        """Deliver messages while webhooks exist; never returns."""
        await self.store.view.wait_for(lambda view: bool(view.entries()))
        await work(self.bus, WEBHOOK_QUEUE, WEBHOOKS, self.on_message, slots=SLOTS)

    async def on_message(self, message: WorkMessage) -> Outcome:
        """Send a message once. Receivers recognise a repeat by its id."""
        queued = decoded(_QUEUED, message)
        try:
            webhook = await self.store.receiver(queued.tenant, queued.webhook_id)
        except NotFound:
            return Done()  # The webhook was deleted.
        if webhook.device is not None and not self.devices.reaches(webhook, self.clock.now()):
            return Done()
        if not reaches(self.limited, webhook, queued.conversation_id):
            return Done()  # The conversation was limited to others meanwhile.
        if self._sending[queued.tenant] >= SLOTS_PER_TENANT:
            return Later(BUSY_S)
        if wait_s := self.recipients.mail_wait_s(webhook):
            if self.clock.now() - queued.created_at >= GIVEN_UP_AFTER:
                raise Poison(message.subject, f"webhook {webhook.id}: its recipient gets too many e-mails")
            return Later(wait_s)
        self._sending[queued.tenant] += 1
        try:
            attempt = await self._attempt(webhook, queued, message.num_delivered)
        finally:
            self._sending[queued.tenant] -= 1
        await self.store.note(queued, attempt)
        if webhook.device is not None and attempt.http_status in ENDED_SUBSCRIPTION:
            await self.store.remove(webhook)
            return Done()
        match attempt.status:
            case "delivered":
                if webhook.task is not None and queued.type == "run.finished":
                    await self.store.remove(webhook)
                return Done()
            case "pending":
                return Later(PAUSES_S[min(message.num_delivered, len(PAUSES_S)) - 1])
            case "failed":
                raise Poison(message.subject, f"webhook {webhook.id} was not delivered: {attempt.error}")

    async def _attempt(self, webhook: Webhook, queued: QueuedDelivery, attempts: int) -> Delivery:
        now = self.clock.now()
        status, error = None, None
        try:
            status = await self.sender.send(webhook, queued, now)
            if not 200 <= status < 300:
                error = f"HTTP {status}"
        except OSError as failure:
            error = str(failure) or type(failure).__name__
        return Delivery(
            id=queued.id,
            type=queued.type,
            status="delivered" if error is None else _after_failure(webhook, status, queued, now),
            created_at=queued.created_at,
            attempts=attempts,
            attempted_at=now,
            http_status=status,
            error=error,
        )


def _after_failure(
    webhook: Webhook, status: int | None, queued: QueuedDelivery, now: datetime
) -> DeliveryStatus:
    given_up_after = GIVEN_UP_AFTER if webhook.device is None else GIVEN_UP_TO_DEVICE_AFTER
    # By Standard Webhooks, a receiver responds with 410 to disable its webhook.
    return "failed" if status == 410 or now - queued.created_at >= given_up_after else "pending"


_QUEUED: TypeAdapter[QueuedDelivery] = TypeAdapter(QueuedDelivery)


MAIL_BURST: Final = 30
"""E-mails that a gateway sends to one mailbox at once."""
MAIL_EVERY_S: Final = 60.0
"""Seconds between further e-mails to one mailbox."""
TEST_BURST: Final = 10
"""Tests of one recipient, and of one tenant, at once."""
TEST_EVERY_S: Final = 10.0
"""Seconds between further tests."""


class Recipients:
    """Limits what one recipient gets, from all tenants together: a recipient did not agree to get anything.

    Each gateway counts for itself.
    """

    def __init__(self) -> None:
        self._mails = Rates(1 / MAIL_EVERY_S, burst=MAIL_BURST)
        self._tests = Rates(1 / TEST_EVERY_S, burst=TEST_BURST)

    def check_test(self, webhook: Webhook) -> None:
        """Count a test; raise `TooManyRequests` if its recipient, or its tenant, has had too many."""
        self._tests.check(f"tenant {webhook.tenant}")
        self._tests.check(_recipient_of(webhook))

    def mail_wait_s(self, webhook: Webhook) -> float:
        """Count an e-mail and return 0, or the seconds until its recipient may get one."""
        return self._mails.take(_recipient_of(webhook)) if webhook.format == "email" else 0.0


def _recipient_of(webhook: Webhook) -> str:
    if webhook.format != "email":
        return str(parse_url(webhook.url)).partition("?")[0]
    mailbox, _, domain = recipient(webhook.url).lower().rpartition("@")
    # ada+anything@example.org is the mailbox ada@example.org.
    return f"{mailbox.partition('+')[0]}@{domain}"
