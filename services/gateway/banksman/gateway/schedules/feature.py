"""Builds the schedules."""

from __future__ import annotations

from banksman.gateway.conversations.runs import Runs
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.requests.client_requests import ClientRequests
from banksman.gateway.schedules.operations import operations
from banksman.gateway.schedules.service import Schedules


async def build(base: Foundation) -> None:
    """Build the schedules, which start due runs until the gateway stops."""
    services = base.services
    schedules = Schedules(
        base.bus, base.clock, services[ClientRequests], services[Runs], base.settings.gateway
    )
    services.add(await base.stack.enter_async_context(schedules))


FEATURE = Feature(operations, build)
