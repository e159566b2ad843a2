"""Webhooks: create, list, read, replace, delete, test, and their deliveries."""

from __future__ import annotations

from banksman.contracts.wire import Stored, Token
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router
from banksman.gateway.webhooks.models import Delivery, WebhookBody, WebhookDescription

routes = router("webhooks")


class CreatedWebhook(WebhookDescription):
    """A new webhook."""

    secret: str
    """The secret that verifies signatures, as Standard Webhooks describes. Only this response contains it."""


class QueuedTest(Stored):
    """A test message that will be delivered."""

    id: Token
    """The message's `webhook-id`, which is also its id in the list of deliveries."""


@routes.get("/context/webhooks")
async def list_webhooks(gateway: ServiceDep, caller: AdminDep) -> Listing[WebhookDescription]:
    """List the tenant's webhooks, oldest first."""
    return Listing[WebhookDescription](items=tuple(await gateway.webhooks.list(caller)))


@routes.post("/context/webhooks", status_code=201)
async def create_webhook(
    body: StrictBody[WebhookBody], gateway: ServiceDep, caller: AdminDep
) -> CreatedWebhook:
    """Create a webhook, which receives events from now on. Only this response contains its secret."""
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
    """Replace a webhook. Its secret is unchanged; pending messages go to the new address."""
    return await gateway.webhooks.replace(caller, webhook_id, body)


@routes.delete("/context/webhooks/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete a webhook; pending messages to it are dropped."""
    await gateway.webhooks.delete(caller, webhook_id)


@routes.post("/context/webhooks/{webhook_id}/test", status_code=202)
async def test_webhook(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> QueuedTest:
    """Send a message of type `webhook.test`."""
    return QueuedTest(id=await gateway.webhooks.test(caller, webhook_id))


@routes.get("/context/webhooks/{webhook_id}/deliveries")
async def list_deliveries(webhook_id: str, gateway: ServiceDep, caller: AdminDep) -> Listing[Delivery]:
    """List the newest deliveries of the last three days."""
    return Listing[Delivery](items=tuple(await gateway.webhooks.deliveries(caller, webhook_id)))
