"""The webhooks of tenants in the bucket `webhooks`, and their deliveries in `deliveries`."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Literal

from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.names import DELIVERIES, EVENTS, WEBHOOKS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.tail import last_sequence
from banksman.bus.storage.watch import BucketView
from banksman.contracts.errors import BanksmanError, Conflict, NotFound
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.operation.parameters import RequestBody

WebhookEvent = Literal["run.finished", "approval.requested", "approval.escalated", "input.requested"]
"""
run.finished        a run ended
approval.requested  a user must decide calls
approval.escalated  an approval request was escalated, after a time or because a user set it aside
input.requested     a workflow needs a value from a user
"""
WebhookFormat = Literal["standard", "chat", "email"]
"""
standard  the event with its data
chat      `{"text": …}`, as incoming webhooks of Slack and others expect it
email     an e-mail to the address of a `mailto:` URL, if the operator set a mail server
"""
StoredFormat = WebhookFormat | Literal["push", "a2a"]
"""
push  a message of Web Push to the device of one user; devices are not listed as webhooks
a2a   an update of one task, as A2A's push notifications have it; not listed as a webhook
"""
TEST_EVENT = "webhook.test"
DeliveryStatus = Literal["pending", "delivered", "failed"]
"""
pending    not delivered yet; sent again later
delivered  the receiver confirmed it with a status of 2xx
failed     given up; the dead letters contain it
"""


class WebhookBody(RequestBody):
    """The address of a webhook, and the events that it receives."""

    url: str = Field(max_length=2000)
    """An https address of a public host; for the format `email`, a URL such as `mailto:ada@example.org`."""
    events: tuple[WebhookEvent, ...] = Field(min_length=1, max_length=4)
    description: str = Field(default="", max_length=200)
    format: WebhookFormat = "standard"
    page_url: str = Field(default="", max_length=500, pattern=r"^(https?://[^\s<>|]+)?$")
    """The address of the page, for links in messages of the format `chat`."""


class WebhookDescription(Stored):
    """A webhook, without its secret."""

    id: Token
    url: str
    events: tuple[WebhookEvent, ...]
    description: str
    format: StoredFormat
    page_url: str
    created_at: Timestamp
    created_by: str


class PushKeys(RequestBody):
    """The keys of a browser, in base64url, with which messages to it are encrypted."""

    p256dh: str = Field(max_length=100)
    """The public key, 65 bytes."""
    auth: str = Field(max_length=30)
    """The secret, 16 bytes."""


class Device(Stored):
    """The data that a message to a device needs in addition to its address."""

    keys: PushKeys
    origin: str
    """The origin of the page; empty if it is unknown."""
    api_key: str | None
    """SHA-256 of the key that the user signed in with; None without one."""
    expires_at: Timestamp


class Task(Stored):
    """The run whose updates A2A's push notifications report."""

    run_id: Token
    config_id: str
    """The client's id of the configuration."""
    sealed: str = Field(repr=False)
    """The headers of each message that the client requested, encrypted."""


class Webhook(WebhookDescription):
    """An address that receives events. Its secret is derived and not stored."""

    tenant: Token
    description: str = ""
    format: StoredFormat = "standard"
    page_url: str = ""
    after_seq: int | None = Field(default=None, exclude_if=lambda seq: seq is None)
    """The last stream sequence of EVENTS at its creation: it receives later commits. None for devices,
    which receive events since `created_at`."""
    device: Device | None = Field(default=None, exclude_if=lambda device: device is None)
    """The device, for the format `push`; `created_by` is its user."""
    task: Task | None = Field(default=None, exclude_if=lambda task: task is None)
    """The task, for the format `a2a`."""

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.id}"


class QueuedDelivery(Stored):
    """A message to deliver. The body's bytes are fixed here, so that each attempt sends the same."""

    id: Token
    """The `webhook-id`, the same for every attempt, by which a receiver recognises a repeat."""
    tenant: Token
    webhook_id: Token
    type: str
    created_at: Timestamp
    conversation_id: str = Field(default="", exclude_if=lambda id: id == "")
    """The conversation of the event; empty for a test."""
    body: str


class Delivery(Stored):
    """The state of a delivery, for the tenant's administrator."""

    id: Token
    type: str
    status: DeliveryStatus
    created_at: Timestamp
    attempts: int = 0
    attempted_at: Timestamp | None = None
    http_status: int | None = None
    """Status of the last response; None without a response."""
    error: str | None = None
    """Why the last attempt failed."""


logger = logging.getLogger(__name__)

MAX_WEBHOOKS = 20
"""Maximum webhooks of one tenant."""
DEVICE_PREFIX = "push-"
LISTED = 100
"""Maximum listed deliveries of a webhook, newest first."""


class WebhookStore:
    def __init__(self, bus: Bus) -> None:
        self.bucket = Bucket(bus, WEBHOOKS, Webhook)
        self.view = BucketView(self.bucket)
        self._deliveries = Bucket(bus, DELIVERIES, Delivery)

    def tenants(self) -> list[str]:
        return sorted({entry.value.tenant for entry in self.view.entries()})

    async def receivers(self, tenant: str) -> list[Webhook]:
        """Return the webhooks, devices and task receivers of a tenant, oldest first."""
        found = [entry.value async for entry in self.bucket.entries(tenant)]
        return sorted(found, key=lambda webhook: (webhook.created_at, webhook.id))

    async def list(self, tenant: str) -> list[Webhook]:
        return [one for one in await self.receivers(tenant) if one.device is None and one.task is None]

    async def devices(self, tenant: str) -> list[Webhook]:
        return [one for one in await self.receivers(tenant) if one.device is not None]

    async def receiver(self, tenant: str, receiver_id: str) -> Webhook:
        entry = await self.bucket.get(f"{tenant}.{check_token(receiver_id, 'webhook_id')}")
        if entry is None:
            raise NotFound("webhook", receiver_id)
        return entry.value

    async def get(self, tenant: str, webhook_id: str) -> Webhook:
        found = await self.receiver(tenant, webhook_id)
        if found.device is not None or found.task is not None:
            raise NotFound("webhook", webhook_id)
        return found

    async def put(self, receiver: Webhook) -> None:
        await self.bucket.put(receiver.key, receiver)

    async def remove(self, receiver: Webhook) -> None:
        await self.bucket.delete(receiver.key)

    async def create(self, tenant: str, user: str, asked: WebhookBody, now: datetime) -> Webhook:
        if len(await self.list(tenant)) >= MAX_WEBHOOKS:
            raise Conflict(f"the tenant has {MAX_WEBHOOKS} webhooks; delete some first")
        webhook = Webhook(
            id=new_id("wh-"),
            tenant=tenant,
            created_at=now,
            created_by=user,
            # Not the time: it is an estimate, and an event could seem to be older.
            after_seq=await last_sequence(self.bucket.bus, EVENTS),
            **dict(asked),
        )
        await self.put(webhook)
        return webhook

    async def replace(self, tenant: str, webhook_id: str, asked: WebhookBody) -> Webhook:
        webhook = (await self.get(tenant, webhook_id)).model_copy(update=dict(asked))
        await self.put(webhook)
        return webhook

    async def delete(self, tenant: str, webhook_id: str) -> None:
        await self.remove(await self.get(tenant, webhook_id))

    async def deliveries(self, tenant: str, webhook_id: str) -> list[Delivery]:
        """Return the newest deliveries of a webhook, of the last three days."""
        await self.get(tenant, webhook_id)
        found = [entry.value async for entry in self._deliveries.entries(f"{tenant}.{webhook_id}")]
        return sorted(found, key=lambda one: (one.created_at, one.id), reverse=True)[:LISTED]

    async def note(self, message: QueuedDelivery, delivery: Delivery) -> None:
        """Store the state of a delivery. A failure is only logged, because the state is informational."""
        try:
            await self._deliveries.put(f"{message.tenant}.{message.webhook_id}.{delivery.id}", delivery)
        except BanksmanError as error:
            logger.warning(
                "%s: the state of delivery %s was not stored: %s", message.tenant, message.id, error
            )
