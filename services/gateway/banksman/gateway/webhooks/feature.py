"""Builds the webhooks, mails and push messages."""

from __future__ import annotations

from banksman.gateway.a2a_tasks import TaskNotifications
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.webhooks.operations import operations
from banksman.gateway.webhooks.service import Webhooks


async def build(base: Foundation) -> None:
    """Build the webhooks, which deliver events until the gateway stops."""
    key = base.settings.approvals.key()
    views = base.services[Views]
    webhooks = Webhooks(base.bus, base.clock, key, base.keys, views, base.settings.gateway)
    base.services.add(await base.stack.enter_async_context(webhooks))
    base.services.provide(TaskNotifications, webhooks.tasks)


FEATURE = Feature(operations, build)
