"""Builds the deletion of unused conversations."""

from __future__ import annotations

from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.housekeeping.retention import Retention
from banksman.gateway.operation.declaration import Operations


async def build(base: Foundation) -> None:
    """Build the walk over conversations that were not used for the retention time of their tenant."""
    services = base.services
    retention = Retention(
        base.bus,
        services[Conversations],
        services[Views],
        services[ConversationChanges],
        base.clock,
        base.settings.tenants,
    )
    await base.stack.enter_async_context(retention)


FEATURE = Feature(Operations("housekeeping"), build)
