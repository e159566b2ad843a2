"""The webhooks of tenants in the bucket `webhooks`, and their deliveries in `deliveries`."""

from __future__ import annotations

import logging
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.names import DELIVERIES, EVENTS, WEBHOOKS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.tail import last_sequence
from banksman.bus.storage.watch import BucketView
from banksman.contracts.errors import BanksmanError, Conflict, NotFound
from banksman.contracts.ids import check_token, new_id
from banksman.gateway.webhooks.models import Delivery, QueuedDelivery, Webhook, WebhookBody

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
