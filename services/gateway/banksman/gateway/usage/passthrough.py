"""Counts the usage of tenants by passthrough, and refuses tenants that have used up a limit.

Agents count runs from the logs. Passthrough has no log: each gateway adds its counts every few seconds to one
key per tenant in bucket `usage`, which agents add to their totals. A killed gateway loses the counts of the
last seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

from banksman.bus.connection import Bus
from banksman.bus.names import USAGE
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import BanksmanError, ErrorCode, Overloaded
from banksman.contracts.messages import Usage
from banksman.contracts.usage import WINDOWS, CommitUsage, UsageTotals, ends_at, passthrough_key, usage_key
from banksman.runs.ports import Clock
from banksman.runs.pricing import Price, cost, load_prices
from banksman.runtime.scope import Scoped
from banksman.runtime.tenants import TenantLimits, TenantSettings

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
READ_VALID_S = 2.0
"""Seconds for which cached totals of a tenant with limits are used."""


class TenantLimitReached(Overloaded):
    """A tenant has used up its tokens or its budget for a day or month."""

    code = ErrorCode.RATE_LIMITED


class PassthroughUsage(Scoped):
    """The usage of passthrough. As a context manager it stores the counts."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        settings: TenantSettings,
        prices: Mapping[str, Price],
        *,
        write_every_s: float = WRITE_EVERY_S,
    ) -> None:
        self._bus = bus
        self._write_every_s = write_every_s
        self._clock = clock
        self._settings = settings
        self._prices = prices
        self._loaded: set[str] = set()
        """Upstreams for whose models the price list was loaded."""
        self._bucket = Bucket(bus, USAGE, UsageTotals)
        self._pending: dict[str, CommitUsage] = {}
        """Counts that are not stored yet, by tenant."""
        self._totals: dict[str, tuple[float, UsageTotals]] = {}
        """Stored totals of tenants with limits, with the time until which they are used."""
        self._limits: dict[str, TenantLimits] = {}

    async def _enter(self, scope: AsyncExitStack) -> None:
        scope.push_async_callback(self._store_last)
        wait = partial(asyncio.sleep, self._write_every_s)
        scope.push_async_callback(
            self._bus.background.repeat("passthrough-usage", self.store, wait=wait).stop
        )

    async def _store_last(self) -> None:
        try:
            await self.store()
        except BanksmanError as failed:
            logger.warning("the last usage of passthrough is not stored: %s", failed)

    def add(self, tenant: str, model: str, usage: Usage) -> None:
        """Count one request to `upstream:model`; without a known price it costs nothing."""
        cost_usd = cost(model, usage, self._prices) or 0.0
        self._count(tenant, CommitUsage(1, usage.input_tokens, usage.output_tokens, cost_usd))

    def _count(self, tenant: str, usage: CommitUsage) -> None:
        self._pending[tenant] = self._pending.get(tenant, CommitUsage()).plus(usage)

    async def bounded(self, tenant: str, models: list[str]) -> set[str]:
        """Return the models that a tenant may use: those with a price while it has only a limit of cost."""
        await self._load(models)
        if not self._of(tenant).only_cost:
            return set(models)
        return {model for model in models if cost(model, Usage(), self._prices) is not None}

    async def _load(self, models: list[str]) -> None:
        for model in models:
            upstream = model.partition(":")[0]
            if upstream not in self._loaded:
                # The first look-up imports the price list, which takes 0.4 s.
                await asyncio.to_thread(load_prices, model)
                self._loaded.add(upstream)

    def _of(self, tenant: str) -> TenantLimits:
        limits = self._limits.get(tenant)
        if limits is None:
            limits = self._limits[tenant] = self._settings.of(tenant)
        return limits

    async def check(self, tenant: str) -> None:
        """Raise `TenantLimitReached` if a limit is used up. Costs nothing for a tenant without limits."""
        limits = self._of(tenant)
        if all(limits.within(window) == (None, None) for window in WINDOWS):
            return
        totals, now = await self._read(tenant), self._clock.now()
        waiting = self._pending.get(tenant, CommitUsage())
        for window in WINDOWS:
            tokens, cost_usd = limits.within(window)
            counted = totals.current(window, now).add(waiting)
            if (tokens is not None and counted.tokens >= tokens) or (
                cost_usd is not None and counted.cost_usd >= cost_usd
            ):
                frees_at = ends_at(window, now)
                raise TenantLimitReached(
                    f"The limit of this {window} is used up. It resets at {frees_at:%Y-%m-%dT%H:%MZ}.",
                    retry_after_s=(frees_at - now).total_seconds(),
                )

    async def _read(self, tenant: str) -> UsageTotals:
        until, totals = self._totals.get(tenant, (0.0, UsageTotals()))
        if time.monotonic() >= until:
            totals = await stored_totals(self._bucket, tenant)
            self._totals[tenant] = time.monotonic() + READ_VALID_S, totals
        return totals

    async def store(self) -> None:
        """Add the counts to the stored totals. After an error of the broker they are stored later."""
        for tenant in tuple(self._pending):
            await self._store(tenant)

    async def _store(self, tenant: str) -> None:
        key = passthrough_key(tenant)
        entry = await self._bucket.get_or_drop(key)
        before = entry.value if entry else UsageTotals()
        usage, revision = self._pending.pop(tenant), None
        after = before.with_commit(before.upto + 1, self._clock.now(), usage)
        try:
            if entry is None:
                revision = await self._bucket.create(key, after)
            else:
                revision = await self._bucket.update(key, after, entry.revision)
        finally:
            # If another gateway stored its counts first, the next round adds these.
            if revision is None:
                self._count(tenant, usage)
            self._totals.pop(tenant, None)


async def stored_totals(bucket: Bucket[UsageTotals], tenant: str) -> UsageTotals:
    # Agents count the runs. Only they may remove a total that cannot be decoded.
    runs = await bucket.get_or_skip(usage_key(tenant))
    passed = await bucket.get_or_drop(passthrough_key(tenant))
    return (runs.value if runs else UsageTotals()).plus(passed.value if passed else UsageTotals())
