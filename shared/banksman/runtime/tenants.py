"""What an operator lets tenants consume, and how far their assistants may go."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.usage import Window
from banksman.contracts.wire import Token
from banksman.runtime.settings import Section


class TenantLimits(Section):
    """Bounds of one tenant. Everywhere 0 is no bound, and None the default tenant's."""

    tokens_per_day: int | None = Field(default=None, ge=0)
    """Input and output tokens of all its runs from midnight to midnight, UTC."""
    tokens_per_month: int | None = Field(default=None, ge=0)
    """The same from the first to the first."""
    cost_usd_per_day: float | None = Field(default=None, ge=0)
    """Requests of models whose price is unknown add nothing."""
    cost_usd_per_month: float | None = Field(default=None, ge=0)
    max_iterations: int | None = Field(default=None, ge=0)
    """The most that an assistant or a request may ask for; the run gets the smaller number."""
    run_timeout_s: float | None = Field(default=None, ge=0)
    """As above."""
    calls_per_reply: int | None = Field(default=None, ge=0)
    """As above."""
    max_tokens_per_run: int | None = Field(default=None, ge=0)
    """As above; also for assistants that set no bound."""
    max_cost_usd_per_run: float | None = Field(default=None, ge=0)
    """As above; also for assistants that set no bound."""

    def within(self, window: Window) -> tuple[int | None, float | None]:
        """The most tokens and USD of one window."""
        if window == "day":
            return self.tokens_per_day, self.cost_usd_per_day
        return self.tokens_per_month, self.cost_usd_per_month


class TenantSettings(Section):
    """Section `tenants`: the default limits, and the differences for named tenants."""

    default: TenantLimits = TenantLimits()
    named: dict[Token, TenantLimits] = Field(default_factory=dict[str, TenantLimits])
    """By the tenant's name; a field that is left out there is the default's."""

    def of(self, tenant: str) -> TenantLimits:
        """A tenant's limits; None where nothing bounds it."""
        own = self.named.get(tenant, TenantLimits()).model_dump(exclude_none=True)
        merged = {**self.default.model_dump(exclude_none=True), **own}
        return TenantLimits(**{name: value for name, value in merged.items() if value})
