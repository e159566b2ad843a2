"""What tenants consumed, as the agents keep it, beside what the operator allows."""

from __future__ import annotations

from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import USAGE
from banksman.contracts.usage import (
    WINDOWS,
    UsageReport,
    UsageTotals,
    UsageWindow,
    Window,
    ends_at,
    usage_key,
)
from banksman.runs.ports import Clock
from banksman.runtime.tenants import TenantLimits, TenantSettings


class UsageReports:
    """Bucket `usage`, read."""

    def __init__(self, bus: Bus, clock: Clock, settings: TenantSettings) -> None:
        self._clock = clock
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._settings = settings

    async def of(self, tenant: str) -> UsageReport:
        """What a tenant consumed in this day and this month."""
        entry = await self._bucket.get(usage_key(tenant))
        totals = UsageTotals() if entry is None else entry.value
        limits, now = self._settings.of(tenant), self._clock.now()
        windows = tuple(_window(window, totals, limits, now) for window in WINDOWS)
        return UsageReport(tenant=tenant, as_of=totals.as_of, windows=windows)


def _window(window: Window, totals: UsageTotals, limits: TenantLimits, now: datetime) -> UsageWindow:
    counted = totals.within(window, now)
    most_tokens, most_usd = limits.within(window)
    return UsageWindow(
        window=window,
        begins=counted.begins,
        ends_at=ends_at(window, now),
        requests=counted.requests,
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cost_usd=counted.cost_usd,
        max_tokens=most_tokens,
        max_cost_usd=most_usd,
    )
