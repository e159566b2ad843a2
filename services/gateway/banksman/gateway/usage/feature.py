"""Builds the count of what tenants consume."""

from __future__ import annotations

from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.usage.operations import operations
from banksman.gateway.usage.passthrough import PassthroughUsage
from banksman.gateway.usage.reports import UsageReports


async def build(base: Foundation) -> None:
    """Build the reports, and the count of passthrough."""
    tenants = base.settings.tenants
    passthrough = PassthroughUsage(base.bus, base.clock, tenants)
    base.services.add(
        UsageReports(base.bus, base.clock, tenants), await base.stack.enter_async_context(passthrough)
    )


FEATURE = Feature(operations, build)
