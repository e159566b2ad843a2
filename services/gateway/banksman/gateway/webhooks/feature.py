"""Builds the webhooks, mails and push messages."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.webhooks.service import Webhooks
from banksman.gateway.webhooks.task_operations import operations


async def build(base: Foundation) -> None:
    """Build the webhooks, which deliver events until the gateway stops."""
    key = base.settings.approvals.key()
    webhooks = Webhooks(base.bus, base.clock, key, base.keys, base.settings.gateway)
    base.services.add(await base.stack.enter_async_context(webhooks))


FEATURE = Feature(operations, build)
