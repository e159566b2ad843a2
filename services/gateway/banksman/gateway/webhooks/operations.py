"""Webhooks and their deliveries, and the receivers of A2A's push notifications for single tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from banksman.bus.names import EVENTS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.tail import last_sequence
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import new_id
from banksman.contracts.wire import Stored, Token
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.conversations.people import LimitedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN, CHAT, READ, Caller
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, StrictBody, provided
from banksman.gateway.runs.bodies import TaskReceiver
from banksman.gateway.runs.runs import Runs
from banksman.gateway.webhooks.delivering import Recipients, WebhookDeliveries
from banksman.gateway.webhooks.devices import Devices
from banksman.gateway.webhooks.devices import operations as push_operations
from banksman.gateway.webhooks.queueing import WebhookQueue, test_message
from banksman.gateway.webhooks.sending import PushSigner, Sender, secret_of
from banksman.gateway.webhooks.store import (
    Delivery,
    Task,
    Webhook,
    WebhookBody,
    WebhookDescription,
    WebhookStore,
)
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


MAX_PER_TASK = 10
MAX_PER_TENANT = 200
"""Maximum receivers of one task, and of all open tasks of a tenant."""


OF_A2A = "the methods of A2A for push notification configurations do the same"

task_operations = Operations("webhooks")


@dataclass(frozen=True, slots=True)
class TaskReceivers:
    """Stores receivers. One is removed after it has confirmed the end of its run."""

    store: WebhookStore
    sender: Sender
    queue: WebhookQueue
    views: Views
    runs: Runs
    signing_key: bytes
    clock: Clock

    @task_operations.between_features(
        "task_receiver.create", right=CHAT, errors=(MISSING, CONFLICT), reason=OF_A2A
    )
    async def create_receiver(self: Receivers, receiver: TaskReceiver, caller: CallerDep) -> str:
        """Store a receiver, and return the secret with which messages to it are signed."""
        found = await self.runs.get(caller.tenant, receiver.run_id)
        stored = await self._put(caller, receiver)
        await self.queue.follow()
        # The run may have ended, or requested a decision, before the receiver was stored.
        first = max(0, found.view.first_seq - 1)
        events = await self.views.events(caller.tenant, found.conversation_id, after_seq=first)
        await self.queue.catch_up(stored, found.conversation_id, events)
        return secret_of(self.signing_key, stored.tenant, stored.id)

    async def _put(self, caller: Caller, asked: TaskReceiver) -> Webhook:
        self.sender.check("a2a", asked.url)
        # A new id, because with the id of a replaced receiver its messages would count as repeats.
        receiver_id = new_id("task-")
        found = await self._of_tenant(caller.tenant)
        replaced = [one for one, task in found if _is_named(task, asked.run_id, asked.config_id)]
        others = [(one, task) for one, task in found if one not in replaced]
        of_task = [one for one, task in others if task.run_id == asked.run_id]
        if len(of_task) >= MAX_PER_TASK or len(others) >= MAX_PER_TENANT:
            raise Conflict(f"at most {MAX_PER_TASK} receivers of a task and {MAX_PER_TENANT} of a tenant")
        sealed = SecretBox(self.signing_key).seal(json.dumps(asked.headers), f"{caller.tenant}.{receiver_id}")
        receiver = Webhook(
            id=receiver_id,
            tenant=caller.tenant,
            url=asked.url,
            events=("run.finished", "approval.requested", "input.requested"),
            format="a2a",
            created_at=self.clock.now(),
            created_by=caller.user,
            after_seq=await last_sequence(self.store.bucket.bus, EVENTS),
            task=Task(run_id=asked.run_id, config_id=asked.config_id, sealed=sealed),
        )
        await self.store.put(receiver)
        for one in replaced:
            await self.store.remove(one)
        return receiver

    async def _of_task(self, caller: Caller, run_id: str) -> list[TaskReceiver]:
        return [
            TaskReceiver(run_id=run_id, config_id=task.config_id, url=one.url)
            for one, task in await self._of_tenant(caller.tenant)
            if task.run_id == run_id
        ]

    @task_operations.between_features("task_receiver.read", right=READ, errors=(MISSING,), reason=OF_A2A)
    async def read_receiver(self: Receivers, run_id: str, config_id: str, caller: CallerDep) -> TaskReceiver:
        """Return a receiver, without its headers."""
        found = [one for one in await self._of_task(caller, run_id) if one.config_id == config_id]
        if not found:
            raise NotFound("push notification configuration", config_id)
        return found[-1]

    @task_operations.between_features("task_receiver.list", right=READ, errors=(MISSING,), reason=OF_A2A)
    async def list_receivers(self: Receivers, run_id: str, caller: CallerDep) -> list[TaskReceiver]:
        """Return the receivers of a task, without their headers."""
        await self.runs.get(caller.tenant, run_id)
        return await self._of_task(caller, run_id)

    @task_operations.between_features("task_receiver.delete", right=CHAT, errors=(MISSING,), reason=OF_A2A)
    async def delete_receiver(self: Receivers, run_id: str, config_id: str, caller: CallerDep) -> None:
        """Delete a receiver; a missing one is no error."""
        await self.runs.get(caller.tenant, run_id)
        for one, task in await self._of_tenant(caller.tenant):
            if _is_named(task, run_id, config_id):
                await self.store.remove(one)

    async def _of_tenant(self, tenant: str) -> list[tuple[Webhook, Task]]:
        return [(one, one.task) for one in await self.store.receivers(tenant) if one.task is not None]


Receivers = Annotated[TaskReceivers, provided(TaskReceivers)]


def _is_named(task: Task, run_id: str, config_id: str) -> bool:
    return (task.run_id, task.config_id) == (run_id, config_id)


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
