"""Webhooks: create, list, read, replace, delete, test, and their deliveries."""

from __future__ import annotations

from banksman.contracts.wire import Stored, Token
from banksman.gateway.asgi.dependencies import AdminDep, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.service.bodies import Listing
from banksman.gateway.service.webhooks.models import Delivery, WebhookBody, WebhookDescription

routes = router("webhooks")


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
    return Listing[WebhookDescription](items=tuple(await gateway.webhooks.list(caller)))


@routes.post("/context/webhooks", status_code=201)
async def create_webhook(
    body: StrictBody[WebhookBody], gateway: ServiceDep, caller: AdminDep
) -> CreatedWebhook:
    """Create a webhook, which gets the events from now on. Its secret is in this response only."""
    secret, webhook = await gateway.webhooks.create(caller, body)
    return CreatedWebhook(**dict(webhook), secret=secret)


@routes.get("/context/webhooks/{webhook_id}")
async def read_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> WebhookDescription:
    """Read a webhook."""
    return await gateway.webhooks.get(caller, webhook_id)


@routes.put("/context/webhooks/{webhook_id}")
async def replace_webhook(
    webhook_id: str, body: StrictBody[WebhookBody], gateway: ServiceDep, caller: AdminDep
) -> WebhookDescription:
    """Replace a webhook. Its secret stays; what waits for delivery goes to the new address."""
    return await gateway.webhooks.replace(caller, webhook_id, body)


@routes.delete("/context/webhooks/{webhook_id}", status_code=204)
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
