"""Webhooks and their deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from banksman.contracts.wire import Stored, Token
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN
from banksman.gateway.operation.declaration import CONFLICT, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, StrictBody, provided
from banksman.gateway.runs.runs import Runs
from banksman.gateway.webhooks.delivering import Recipients, WebhookDeliveries
from banksman.gateway.webhooks.devices import Devices
from banksman.gateway.webhooks.devices import operations as push_operations
from banksman.gateway.webhooks.models import Delivery, WebhookBody, WebhookDescription
from banksman.gateway.webhooks.push_messages import PushSigner
from banksman.gateway.webhooks.queueing import WebhookQueue, test_message
from banksman.gateway.webhooks.sending import Sender, secret_of
from banksman.gateway.webhooks.store import WebhookStore
from banksman.gateway.webhooks.task_receivers import TaskReceivers
from banksman.gateway.webhooks.task_receivers import operations as task_operations
from banksman.runs.ports import Clock

# The address of a webhook may contain a token.
DETAILS = ("events", "format")

operations = Operations("webhooks", right=ADMIN)


class CreatedWebhook(WebhookDescription):
    """A new webhook."""

    secret: str
    """The secret that verifies signatures, as Standard Webhooks describes. Only this response contains it."""


class QueuedTest(Stored):
    """A test message that will be delivered."""

    id: Token
    """The message's `webhook-id`, which is also its id in the list of deliveries."""


@dataclass(frozen=True, slots=True)
class Webhooks:
    store: WebhookStore
    queue: WebhookQueue
    sender: Sender
    recipients: Recipients
    clock: Clock
    signing_key: bytes

    @operations.add("webhook.list", "GET /context/webhooks")
    async def list_webhooks(self: Service, caller: CallerDep) -> Listing[WebhookDescription]:
        """List the tenant's webhooks, oldest first."""
        return Listing[WebhookDescription](items=tuple(await self.store.list(caller.tenant)))

    @operations.add(
        "webhook.create", "POST /context/webhooks", errors=(CONFLICT,), audit=DETAILS, confidential=True
    )
    async def create_webhook(
        self: Service, body: StrictBody[WebhookBody], caller: CallerDep
    ) -> CreatedWebhook:
        """Create a webhook, which receives events from now on. Only this response contains its secret."""
        self.sender.check(body.format, body.url)
        webhook = await self.store.create(caller.tenant, caller.user, body, self.clock.now())
        await self.queue.follow()
        secret = secret_of(self.signing_key, webhook.tenant, webhook.id)
        return CreatedWebhook(**dict(webhook), secret=secret)

    @operations.add("webhook.read", "GET /context/webhooks/{webhook_id}")
    async def read_webhook(self: Service, webhook_id: str, caller: CallerDep) -> WebhookDescription:
        """Read a webhook."""
        return await self.store.get(caller.tenant, webhook_id)

    @operations.add("webhook.update", "PUT /context/webhooks/{webhook_id}", audit=DETAILS, confidential=True)
    async def replace_webhook(
        self: Service, webhook_id: str, body: StrictBody[WebhookBody], caller: CallerDep
    ) -> WebhookDescription:
        """Replace a webhook. Its secret is unchanged; pending messages go to the new address."""
        self.sender.check(body.format, body.url)
        return await self.store.replace(caller.tenant, webhook_id, body)

    @operations.add("webhook.delete", "DELETE /context/webhooks/{webhook_id}", audit=())
    async def delete_webhook(self: Service, webhook_id: str, caller: CallerDep) -> None:
        """Delete a webhook; pending messages to it are dropped."""
        await self.store.delete(caller.tenant, webhook_id)

    @operations.add("webhook.test", "POST /context/webhooks/{webhook_id}/test", status=202)
    async def test_webhook(self: Service, webhook_id: str, caller: CallerDep) -> QueuedTest:
        """Send a message `webhook.test`; a recipient and a tenant get ten at once, then six a minute."""
        webhook = await self.store.get(caller.tenant, webhook_id)
        self.recipients.check_test(webhook)
        message = test_message(webhook, self.clock.now())
        await self.queue.put(message)
        return QueuedTest(id=message.id)

    @operations.add("webhook.deliveries", "GET /context/webhooks/{webhook_id}/deliveries")
    async def list_deliveries(self: Service, webhook_id: str, caller: CallerDep) -> Listing[Delivery]:
        """List the newest deliveries of the last three days."""
        return Listing[Delivery](items=tuple(await self.store.deliveries(caller.tenant, webhook_id)))


Service = Annotated[Webhooks, provided(Webhooks)]


async def build(base: Foundation) -> None:
    bus, clock, key = base.bus, base.clock, base.settings.approvals.key()
    store, signer, views = WebhookStore(bus), PushSigner(key), base.services[Views]
    limited = base.services[LimitedConversations]
    sender, queue = Sender(key, base.settings.gateway, signer), WebhookQueue(bus, store, key, limited)
    devices = Devices(store, sender, queue, base.keys, clock)
    receivers = TaskReceivers(store, sender, queue, views, base.services[Runs], key, clock)
    recipients = Recipients()
    deliveries = WebhookDeliveries(bus, store, devices, sender, recipients, clock, limited)
    enter, background = base.stack.enter_async_context, bus.background
    await enter(store.view)
    await enter(background.running("webhook-deliveries", deliveries.run))
    await enter(background.running("webhook-queue", queue.run))
    base.services[Decisions].on_first.append(queue.on_first)
    base.services.add(Webhooks(store, queue, sender, recipients, clock, key), signer, devices, receivers)


FEATURE = Feature((*operations, *push_operations, *task_operations), build)
