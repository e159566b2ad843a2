"""Reports the usage of a tenant, as agents count it, with the operator's limits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from banksman.bus.connection import Bus
from banksman.bus.names import USAGE
from banksman.bus.storage.kv import Bucket
from banksman.contracts.usage import WINDOWS, UsageReport, UsageTotals, UsageWindow, Window, ends_at
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.usage.passthrough import PassthroughUsage, stored_totals
from banksman.runs.ports import Clock
from banksman.runtime.tenants import TenantLimits, TenantSettings

operations = Operations("assistants")


class UsageReports:
    def __init__(self, bus: Bus, clock: Clock, settings: TenantSettings) -> None:
        self._clock = clock
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._settings = settings

    @operations.add("usage", "GET /context/usage")
    async def read_usage(self: Service, caller: CallerDep) -> UsageReport:
        """Read the usage of the tenant's runs today and this month (UTC), with the operator's limits."""
        return self.report(caller.tenant, await self.totals(caller.tenant))

    async def totals(self, tenant: str) -> UsageTotals:
        return await stored_totals(self._bucket, tenant)

    def report(self, tenant: str, totals: UsageTotals) -> UsageReport:
        """Return stored totals as a report of today and this month (UTC), with the tenant's limits."""
        limits, now = self._settings.of(tenant), self._clock.now()
        windows = tuple(_window(window, totals, limits, now) for window in WINDOWS)
        return UsageReport(tenant=tenant, as_of=totals.as_of, windows=windows)


Service = Annotated[UsageReports, provided(UsageReports)]


def _window(window: Window, totals: UsageTotals, limits: TenantLimits, now: datetime) -> UsageWindow:
    counted = totals.current(window, now)
    max_tokens, max_usd = limits.within(window)
    return UsageWindow(
        window=window,
        begins=counted.begins,
        ends_at=ends_at(window, now),
        requests=counted.requests,
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cost_usd=counted.cost_usd,
        max_tokens=max_tokens,
        max_cost_usd=max_usd,
    )


async def build(base: Foundation) -> None:
    tenants = base.settings.tenants
    passthrough = PassthroughUsage(base.bus, base.clock, tenants, base.settings.agent.prices)
    base.services.add(
        UsageReports(base.bus, base.clock, tenants), await base.stack.enter_async_context(passthrough)
    )


FEATURE = Feature(operations, build)
