"""What tenants may consume: tokens, costs and stored approval requests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus
from banksman.bus.names import APPROVALS
from banksman.contracts import subjects
from banksman.contracts.errors import ErrorCode, Overloaded, Unavailable
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import WINDOWS, UsageCount, UsageTotals, Window, ends_at
from banksman.quotas.stored import MessageRoom
from banksman.runs.outcome import Ending
from banksman.runs.owner import Ownership
from banksman.runtime.tenants import TenantLimits, TenantSettings


class ApprovalRoom:
    """The room for approval requests, which the models of tenants cause."""

    def __init__(self, bus: Bus) -> None:
        self._room = MessageRoom(bus)

    async def problem(self, tenant: str, size: int) -> str | None:
        """Count an approval request of `size` bytes; return why it must not be stored, None if it may be."""
        below = subjects.approval_request(tenant, ANY)
        try:
            await self._room.take_lent(APPROVALS, below, size, "approval requests")
        except Unavailable:
            # The reply of the model is already charged: an unavailable count must not fail its commit.
            return None
        except Overloaded as full:
            return str(full)
        return None


@dataclass(frozen=True, slots=True)
class TenantBudgets:
    """The limits that the operator sets, and what tenants have consumed."""

    settings: TenantSettings
    usage: UsageLedger
    approvals: ApprovalRoom

    async def used_up(self, owned: Ownership) -> Ending | None:
        """Return how the run ends if its tenant has used up a limit; None if no limit is used up.

        The usage that any agent stored before the last commit of this run counts. Requests in progress do not
        count: their price is known only with the reply.
        """
        limits = self.settings.of(owned.state.tenant)
        if not _any_counted(limits):
            return None
        consumed = await self.usage.consumed(owned.state.tenant, owned.state.stream_seq)
        return _used_up(limits, consumed, owned.ports.clock.now())


def _any_counted(limits: TenantLimits) -> bool:
    return any(limits.within(window) != (None, None) for window in WINDOWS)


def _used_up(limits: TenantLimits, totals: UsageTotals, now: datetime) -> Ending | None:
    for window in WINDOWS:
        tokens, cost_usd = limits.within(window)
        counted = totals.current(window, now)
        if tokens is not None and counted.tokens >= tokens:
            used = f"{counted.tokens} of {tokens} tokens"
            return _ending(ErrorCode.TENANT_TOKEN_LIMIT, window, counted, used, now)
        if cost_usd is not None and counted.cost_usd >= cost_usd:
            used = f"{counted.cost_usd:.2f} of {cost_usd:.2f} USD"
            return _ending(ErrorCode.TENANT_COST_LIMIT, window, counted, used, now)
    return None


def _ending(code: ErrorCode, window: Window, counted: UsageCount, used: str, now: datetime) -> Ending:
    frees = ends_at(window, now).isoformat(timespec="minutes").replace("+00:00", "Z")
    text = (
        f"The limit of this {window} is used up: {used} since {counted.begins.isoformat()}. "
        f"It resets at {frees}."
    )
    return Ending("failed", code, text, "not_executed")
