"""Builds the webhooks, mails and push messages."""

from __future__ import annotations

from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.webhooks.operations import operations
from banksman.gateway.webhooks.service import Webhooks
from banksman.gateway.webhooks.task_operations import operations as task_operations


async def build(base: Foundation) -> None:
    """Build the webhooks, which deliver events until the gateway stops."""
    key = base.settings.approvals.key()
    views = base.services[Views]
    webhooks = Webhooks(base.bus, base.clock, key, base.keys, views, base.settings.gateway)
    base.services.add(await base.stack.enter_async_context(webhooks))


FEATURE = Feature((*operations, *task_operations), build)
