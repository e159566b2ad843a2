"""Builds the schedules."""

from __future__ import annotations

from banksman.gateway.assistants.tenant_store import AssistantStore
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.runs import Runs
from banksman.gateway.schedules.operations import operations
from banksman.gateway.schedules.service import Schedules
from banksman.gateway.workflows.workflows import Workflows


async def build(base: Foundation) -> None:
    """Build the schedules, which start due runs until the gateway stops."""
    services = base.services
    schedules = Schedules(
        base.bus,
        base.clock,
        base.settings.gateway,
        dispatcher=base.dispatcher,
        requests=services[StoredRequests],
        runs=services[Runs],
        conversations=services[Conversations],
        assistants=services[AssistantStore],
        workflows=services[Workflows],
    )
    services.add(await base.stack.enter_async_context(schedules))


FEATURE = Feature(operations, build)
