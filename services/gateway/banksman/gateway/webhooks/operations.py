"""Webhooks and their deliveries; and the devices of users that receive approval requests by Web Push."""

from __future__ import annotations

from typing import Annotated

from banksman.contracts.wire import Stored, Token
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN, APPROVE, CHAT, READ
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, StrictBody, provided
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.task_states import TaskReceiver
from banksman.gateway.webhooks.devices import DeviceDescription, PushSubscription, described
from banksman.gateway.webhooks.models import Delivery, WebhookBody, WebhookDescription
from banksman.gateway.webhooks.service import Webhooks

Service = Annotated[Webhooks, provided(Webhooks)]
# The address of a webhook may contain a token.
DETAILS = ("events", "format")
OF_A_BROWSER = "a device is the browser of one user, who is unknown over NATS"

webhook_operations = Operations("webhooks", right=ADMIN)
push_operations = Operations("push", right=APPROVE)


class CreatedWebhook(WebhookDescription):
    """A new webhook."""

    secret: str
    """The secret that verifies signatures, as Standard Webhooks describes. Only this response contains it."""


class QueuedTest(Stored):
    """A test message that will be delivered."""

    id: Token
    """The message's `webhook-id`, which is also its id in the list of deliveries."""


class PushOffer(Stored):
    """The data that a browser needs to subscribe."""

    public_key: str
    """The `applicationServerKey`, in base64url. It changes with the signing key of approvals."""


@webhook_operations.add("webhook.list", "GET /context/webhooks")
async def list_webhooks(webhooks: Service, caller: CallerDep) -> Listing[WebhookDescription]:
    """List the tenant's webhooks, oldest first."""
    return Listing[WebhookDescription](items=tuple(await webhooks.store.list(caller.tenant)))


@webhook_operations.add(
    "webhook.create",
    "POST /context/webhooks",
    status=201,
    errors=(CONFLICT,),
    audit=Audit("webhook.created", DETAILS),
    confidential=True,
)
async def create_webhook(
    body: StrictBody[WebhookBody], webhooks: Service, caller: CallerDep
) -> CreatedWebhook:
    """Create a webhook, which receives events from now on. Only this response contains its secret."""
    secret, webhook = await webhooks.create(caller, body)
    return CreatedWebhook(**dict(webhook), secret=secret)


@webhook_operations.add("webhook.read", "GET /context/webhooks/{webhook_id}", errors=(MISSING,))
async def read_webhook(webhook_id: str, webhooks: Service, caller: CallerDep) -> WebhookDescription:
    """Read a webhook."""
    return await webhooks.store.get(caller.tenant, webhook_id)


@webhook_operations.add(
    "webhook.update",
    "PUT /context/webhooks/{webhook_id}",
    errors=(MISSING,),
    audit=Audit("webhook.changed", DETAILS),
    confidential=True,
)
async def replace_webhook(
    webhook_id: str, body: StrictBody[WebhookBody], webhooks: Service, caller: CallerDep
) -> WebhookDescription:
    """Replace a webhook. Its secret is unchanged; pending messages go to the new address."""
    return await webhooks.replace(caller, webhook_id, body)


@webhook_operations.add(
    "webhook.delete",
    "DELETE /context/webhooks/{webhook_id}",
    status=204,
    errors=(MISSING,),
    audit=Audit("webhook.deleted"),
)
async def delete_webhook(webhook_id: str, webhooks: Service, caller: CallerDep) -> None:
    """Delete a webhook; pending messages to it are dropped."""
    await webhooks.store.delete(caller.tenant, webhook_id)


@webhook_operations.add(
    "webhook.test", "POST /context/webhooks/{webhook_id}/test", status=202, errors=(MISSING,)
)
async def test_webhook(webhook_id: str, webhooks: Service, caller: CallerDep) -> QueuedTest:
    """Send a message of type `webhook.test`."""
    return QueuedTest(id=await webhooks.test(caller, webhook_id))


@webhook_operations.add(
    "webhook.deliveries", "GET /context/webhooks/{webhook_id}/deliveries", errors=(MISSING,)
)
async def list_deliveries(webhook_id: str, webhooks: Service, caller: CallerDep) -> Listing[Delivery]:
    """List the newest deliveries of the last three days."""
    return Listing[Delivery](items=tuple(await webhooks.store.deliveries(caller.tenant, webhook_id)))


@push_operations.add("push.read", "GET /context/push", not_over_nats=OF_A_BROWSER)
async def read_push_offer(webhooks: Service) -> PushOffer:
    """Read the data that a browser needs to subscribe."""
    return PushOffer(public_key=webhooks.devices.public_key)


@push_operations.add("device.list", "GET /context/push/devices", not_over_nats=OF_A_BROWSER)
async def list_devices(webhooks: Service, caller: CallerDep) -> Listing[DeviceDescription]:
    """List the caller's devices, oldest first."""
    devices = await webhooks.devices.list(caller)
    return Listing[DeviceDescription](items=tuple(described(one) for one in devices))


@push_operations.add("device.register", "PUT /context/push/devices", not_over_nats=OF_A_BROWSER)
async def register_device(
    body: StrictBody[PushSubscription], webhooks: Service, caller: CallerDep
) -> DeviceDescription:
    """Register the caller's device for approval requests, or renew it."""
    return described(await webhooks.register_device(caller, body))


@push_operations.add(
    "device.remove", "DELETE /context/push/devices/{device_id}", status=204, not_over_nats=OF_A_BROWSER
)
async def remove_device(device_id: str, webhooks: Service, caller: CallerDep) -> None:
    """Remove a device of the caller."""
    await webhooks.devices.remove(caller, device_id)


operations = (*webhook_operations, *push_operations)


OF_A2A = "the methods of A2A for push notification configurations do the same"


RunReads = Annotated[Runs, provided(Runs)]

task_operations = Operations("webhooks")


@task_operations.between_features(
    "task_receiver.create", right=CHAT, errors=(MISSING, CONFLICT), reason=OF_A2A
)
async def create_receiver(
    receiver: TaskReceiver, webhooks: Service, runs: RunReads, caller: CallerDep
) -> str:
    """Store a receiver, and return the secret with which messages to it are signed."""
    found = await runs.get(caller.tenant, receiver.run_id)
    # The run may have ended, or requested a decision, before the receiver was stored.
    first = max(0, found.view.first_seq - 1)
    return await webhooks.tasks.add(caller, receiver, found.conversation_id, after_seq=first)


@task_operations.between_features("task_receiver.read", right=READ, errors=(MISSING,), reason=OF_A2A)
async def read_receiver(run_id: str, config_id: str, webhooks: Service, caller: CallerDep) -> TaskReceiver:
    """Return a receiver, without its headers."""
    return await webhooks.tasks.get(caller, run_id, config_id)


@task_operations.between_features("task_receiver.list", right=READ, errors=(MISSING,), reason=OF_A2A)
async def list_receivers(
    run_id: str, webhooks: Service, runs: RunReads, caller: CallerDep
) -> list[TaskReceiver]:
    """Return the receivers of a task, without their headers."""
    await runs.get(caller.tenant, run_id)
    return list(await webhooks.tasks.list(caller, run_id))


@task_operations.between_features("task_receiver.delete", right=CHAT, errors=(MISSING,), reason=OF_A2A)
async def delete_receiver(
    run_id: str, config_id: str, webhooks: Service, runs: RunReads, caller: CallerDep
) -> None:
    """Delete a receiver; a missing one is no error."""
    await runs.get(caller.tenant, run_id)
    await webhooks.tasks.delete(caller, run_id, config_id)


async def build(base: Foundation) -> None:
    key = base.settings.approvals.key()
    views = base.services[Views]
    webhooks = Webhooks(base.bus, base.clock, key, base.keys, views, base.settings.gateway)
    base.services.add(await base.stack.enter_async_context(webhooks))


FEATURE = Feature((*operations, *task_operations), build)
