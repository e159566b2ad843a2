"""Webhooks and their deliveries, as clients send and read them, and as they are stored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
