"""Webhooks: create, list, read, replace, delete, test, and their deliveries."""

from __future__ import annotations

from fastapi import Response
from pydantic import Field

from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.asgi.dependencies import AdminDep, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.service.bodies import Listing, RequestBody
from banksman.gateway.service.webhooks.models import Delivery, Webhook, WebhookEvent, WebhookFormat
from banksman.gateway.service.webhooks.store import WebhookRequest

routes = router("webhooks")


class WebhookBody(RequestBody):
    """Where to send which events."""

    url: str = Field(max_length=2000)
    """An https address of a public host."""
    events: tuple[WebhookEvent, ...] = Field(min_length=1, max_length=3)
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
    format: WebhookFormat
    page_url: str
    created_at: Timestamp
    created_by: str


class CreatedWebhook(WebhookDescription):
    """A new webhook."""

    secret: str
    """Verifies the signatures, as Standard Webhooks describes. It is shown only here."""


class QueuedTest(Stored):
    """A test message that will be delivered."""

    id: Token
    """Its `webhook-id`, under which the deliveries list it."""


@routes.get("/context/webhooks")
async def list_webhooks(gateway: ServiceDep, caller: AdminDep) -> Listing[WebhookDescription]:
    """List the tenant's webhooks, oldest first."""
    found = await gateway.webhooks.list(caller)
    return Listing[WebhookDescription](items=tuple(_described(webhook) for webhook in found))


@routes.post("/context/webhooks", status_code=201)
async def create_webhook(
    body: StrictBody[WebhookBody], gateway: ServiceDep, caller: AdminDep
) -> CreatedWebhook:
    """Create a webhook, which gets the events from now on. Its secret is in this response only."""
    secret, webhook = await gateway.webhooks.create(caller, WebhookRequest(**dict(body)))
    return CreatedWebhook(**dict(_described(webhook)), secret=secret)


@routes.get("/context/webhooks/{webhook_id}")
async def read_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> WebhookDescription:
    """Read a webhook."""
    return _described(await gateway.webhooks.get(caller, webhook_id))


@routes.put("/context/webhooks/{webhook_id}")
async def replace_webhook(
    webhook_id: str, body: StrictBody[WebhookBody], gateway: ServiceDep, caller: AdminDep
) -> WebhookDescription:
    """Replace a webhook. Its secret stays; what waits for delivery goes to the new address."""
    return _described(await gateway.webhooks.replace(caller, webhook_id, WebhookRequest(**dict(body))))


@routes.delete("/context/webhooks/{webhook_id}", status_code=204, response_class=Response)
async def delete_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete a webhook; what waits for delivery to it is dropped."""
    await gateway.webhooks.delete(caller, webhook_id)


@routes.post("/context/webhooks/{webhook_id}/test", status_code=202)
async def test_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> QueuedTest:
    """Send a message of type `webhook.test`."""
    return QueuedTest(id=await gateway.webhooks.test(caller, webhook_id))


@routes.get("/context/webhooks/{webhook_id}/deliveries")
async def list_deliveries(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> Listing[Delivery]:
    """List the newest deliveries of the last three days."""
    return Listing[Delivery](items=tuple(await gateway.webhooks.deliveries(caller, webhook_id)))


def _described(webhook: Webhook) -> WebhookDescription:
    return WebhookDescription.model_validate(webhook.model_dump(exclude={"tenant"}))
