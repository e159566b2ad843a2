"""The webhooks of a gateway: the requests of clients, and the two loops that queue and deliver messages."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Self

from banksman.bus.connection import Bus
from banksman.gateway.conversations.views import Views
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import Caller
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.webhooks.delivering import WebhookDeliveries
from banksman.gateway.webhooks.devices import Devices, PushSubscription
from banksman.gateway.webhooks.mail import Mailer
from banksman.gateway.webhooks.models import Webhook, WebhookBody
from banksman.gateway.webhooks.push_messages import PushSigner
from banksman.gateway.webhooks.queueing import WebhookQueue, test_message
from banksman.gateway.webhooks.sending import Sender, secret_of
from banksman.gateway.webhooks.store import WebhookStore
from banksman.gateway.webhooks.task_receivers import TaskReceivers
from banksman.runs.ports import Clock


class Webhooks:
    """Webhooks of all tenants. As a context manager it delivers."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        signing_key: bytes,
        keys: Keys,
        views: Views,
        settings: GatewaySettings,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._key = signing_key
        self.store = WebhookStore(bus)
        self._queue = WebhookQueue(bus, self.store, signing_key)
        push_signer = PushSigner(signing_key)
        mailer = Mailer(settings.smtp)
        self._sender = Sender(signing_key, settings.webhook_addresses, mailer, push_signer)
        self.devices = Devices(self.store, self._sender, push_signer, keys, clock)
        self.tasks = TaskReceivers(self.store, self._sender, self._queue, views, signing_key, clock)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        await enter(self.store.view)
        await enter(self._sender)
        deliveries = WebhookDeliveries(self._bus, self.store, self.devices, self._sender, self._clock)
        await enter(self._bus.background.running("webhook-deliveries", deliveries.run))
        await enter(self._bus.background.running("webhook-queue", self._queue.run))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def create(self, caller: Caller, asked: WebhookBody) -> tuple[str, Webhook]:
        """Store a new webhook; return its secret and its description. It receives events from now on."""
        self._sender.check(asked.format, asked.url)
        webhook = await self.store.create(caller.tenant, caller.user, asked, self._clock.now())
        await self._queue.follow()
        return secret_of(self._key, webhook.tenant, webhook.id), webhook

    async def replace(self, caller: Caller, webhook_id: str, asked: WebhookBody) -> Webhook:
        self._sender.check(asked.format, asked.url)
        return await self.store.replace(caller.tenant, webhook_id, asked)

    async def register_device(self, caller: Caller, asked: PushSubscription) -> Webhook:
        device = await self.devices.register(caller, asked)
        await self._queue.follow()
        return device

    async def test(self, caller: Caller, webhook_id: str) -> str:
        message = test_message(await self.store.get(caller.tenant, webhook_id), self._clock.now())
        await self._queue.put(message)
        return message.id
