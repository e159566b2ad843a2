"""Builds what operators see of the system."""

from __future__ import annotations

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operator.dead_letters import DeadLetters
from banksman.gateway.operator.open_runs import OpenRuns
from banksman.gateway.operator.operations import operations
from banksman.gateway.operator.overview import OverviewReader
from banksman.gateway.operator.processes import Processes
from banksman.gateway.operator.tenants import Tenants
from banksman.gateway.usage.reports import UsageReports


async def build(base: Foundation) -> None:
    """Build the views of streams, processes, tenants, open runs and dead letters."""
    bus, services = base.bus, base.services
    services.add(
        DeadLetters(bus),
        OpenRuns(bus, services[ApprovalSlots]),
        OverviewReader(bus),
        Processes(bus),
        Tenants(bus, base.keys, services[UsageReports], base.settings.tenants),
    )


FEATURE = Feature(operations, build)
