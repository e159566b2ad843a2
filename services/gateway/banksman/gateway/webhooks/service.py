"""The webhooks of a gateway: the requests of clients, and the two loops that queue and deliver messages."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.sealing import SecretBox
from banksman.gateway.conversations.views import StoredEvents
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.task_states import TaskReceiver
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.webhooks.delivering import WebhookDeliveries
from banksman.gateway.webhooks.devices import Devices, PushSubscription
from banksman.gateway.webhooks.mail import Mailer
from banksman.gateway.webhooks.models import Delivery, Webhook, WebhookBody
from banksman.gateway.webhooks.push_messages import PushSigner
from banksman.gateway.webhooks.queueing import WebhookQueue, test_message
from banksman.gateway.webhooks.sending import Sender, secret_of
from banksman.gateway.webhooks.store import WebhookStore
from banksman.gateway.webhooks.task_receivers import TaskReceivers
from banksman.runs.ports import Clock


class Webhooks:
    """Webhooks of all tenants. As a context manager it delivers."""

    def __init__(
        self, bus: Bus, clock: Clock, signing_key: bytes, keys: Keys, settings: GatewaySettings
    ) -> None:
        """Create the service.

        Args:
            bus: The connection.
            clock: The broker's clock.
            signing_key: The system's signing key, from which secrets are derived.
            keys: The keys of callers: devices of users with a revoked key receive nothing.
            settings: The addresses that webhooks may reach although they are not public, and the mail server.
        """
        self._bus = bus
        self._clock = clock
        self._key = signing_key
        self._store = WebhookStore(bus)
        self._queue = WebhookQueue(bus, self._store, signing_key)
        push_signer = PushSigner(signing_key)
        mailer = Mailer(settings.smtp)
        self._sender = Sender(signing_key, settings.webhook_addresses, mailer, push_signer)
        self.devices = Devices(self._store, self._sender, push_signer, keys, clock)
        self.tasks = TaskReceivers(self._store, self._sender, SecretBox(signing_key), clock)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        await enter(self._store.view)
        await enter(self._sender)
        deliveries = WebhookDeliveries(self._bus, self._store, self.devices, self._sender, self._clock)
        await enter(self._bus.background.running("webhook-deliveries", deliveries.run))
        await enter(self._bus.background.running("webhook-queue", self._queue.run))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def list(self, caller: Caller) -> list[Webhook]:
        """Return the webhooks of the caller's tenant, oldest first."""
        return await self._store.list(caller.tenant)

    async def get(self, caller: Caller, webhook_id: str) -> Webhook:
        """Return a webhook.

        Raises:
            NotFound: The caller's tenant has no such webhook.
        """
        return await self._store.get(caller.tenant, webhook_id)

    async def create(self, caller: Caller, asked: WebhookBody) -> tuple[str, Webhook]:
        """Store a new webhook; return its secret and its description. It receives events from now on.

        Raises:
            BadInput: The address is not allowed.
            Conflict: The tenant has too many webhooks.
        """
        self._sender.check(asked.format, asked.url)
        webhook = await self._store.create(caller.tenant, caller.user, asked, self._clock.now())
        await self._queue.follow()
        return secret_of(self._key, webhook.tenant, webhook.id), webhook

    async def replace(self, caller: Caller, webhook_id: str, asked: WebhookBody) -> Webhook:
        """Replace a webhook.

        Raises:
            BadInput: The address is not allowed.
            NotFound: The caller's tenant has no such webhook.
        """
        self._sender.check(asked.format, asked.url)
        return await self._store.replace(caller.tenant, webhook_id, asked)

    async def delete(self, caller: Caller, webhook_id: str) -> None:
        """Delete a webhook; pending messages to it are dropped.

        Raises:
            NotFound: The caller's tenant has no such webhook.
        """
        await self._store.delete(caller.tenant, webhook_id)

    async def register_device(self, caller: Caller, asked: PushSubscription) -> Webhook:
        """Register a device of the caller for approval requests, or renew it.

        Raises:
            BadInput, Conflict: As `Devices.register`.
        """
        device = await self.devices.register(caller, asked)
        await self._queue.follow()
        return device

    async def notify_of_task(self, caller: Caller, asked: TaskReceiver) -> tuple[str, Webhook]:
        """Store a receiver of a task; return the secret of its signatures and the receiver.

        Raises:
            BadInput, Conflict: As `TaskReceivers.put`.
        """
        receiver = await self.tasks.put(caller, asked)
        await self._queue.follow()
        return secret_of(self._key, receiver.tenant, receiver.id), receiver

    async def catch_up(self, receiver: Webhook, conversation_id: str, events: StoredEvents) -> None:
        """Queue the newest event that a receiver selects among the events before its creation."""
        await self._queue.catch_up(receiver, conversation_id, events)

    async def test(self, caller: Caller, webhook_id: str) -> str:
        """Queue a test message; return its id.

        Raises:
            NotFound: The caller's tenant has no such webhook.
        """
        message = test_message(await self._store.get(caller.tenant, webhook_id), self._clock.now())
        await self._queue.put(message)
        return message.id

    async def deliveries(self, caller: Caller, webhook_id: str) -> list[Delivery]:
        """Return the newest deliveries of a webhook, of the last three days.

        Raises:
            NotFound: The caller's tenant has no such webhook.
        """
        return await self._store.deliveries(caller.tenant, webhook_id)
