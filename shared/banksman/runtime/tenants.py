"""Limits of tenants: usage, limits of their runs, and concurrency."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field

from banksman.contracts.usage import WINDOWS, Window
from banksman.contracts.wire import Token
from banksman.runtime.settings import Section


class TenantLimits(Section):
    """Limits of one tenant. In every field 0 means no limit and None means the default limit."""

    tokens_per_day: int | None = Field(default=None, ge=0)
    """Input and output tokens of all runs from midnight to midnight, UTC."""
    tokens_per_month: int | None = Field(default=None, ge=0)
    """Input and output tokens of all runs of a calendar month, UTC."""
    cost_usd_per_day: float | None = Field(default=None, ge=0)
    """USD of all runs and of passthrough from midnight to midnight, UTC. Requests of models without a known
    price add nothing; while no day or month limits tokens, such models are refused."""
    cost_usd_per_month: float | None = Field(default=None, ge=0)
    """USD of all runs and of passthrough in a calendar month, UTC."""
    max_iterations: int | None = Field(default=None, ge=0)
    """Upper bound for `max_iterations` of an assistant or a request; the run gets the smaller value."""
    run_timeout_s: float | None = Field(default=None, ge=0)
    """Upper bound, in seconds, for `run_timeout_s` of an assistant or a request."""
    calls_per_reply: int | None = Field(default=None, ge=0)
    """Upper bound for `calls_per_reply` of an assistant."""
    max_calls_per_run: int | None = Field(default=None, ge=0)
    """Upper bound for `max_calls_per_run` of an assistant; it also applies to assistants without a limit."""
    max_tokens_per_run: int | None = Field(default=None, ge=0)
    """Upper bound for `max_tokens_per_run` of an assistant; it also applies to assistants without a limit."""
    max_cost_usd_per_run: float | None = Field(default=None, ge=0)
    """Upper bound for `max_cost_usd` of an assistant; it also applies to assistants without a limit."""
    running_runs: int | None = Field(default=None, ge=0)
    """Runs that one agent drives at a time; without a limit, the tenant's share of `agent.slots`."""
    waiting_runs: int | None = Field(default=None, ge=0)
    """Runs that may be queued or driven at once. Without a limit, `gateway.max_waiting_runs_per_tenant`."""
    running_calls: int | None = Field(default=None, ge=0)
    """Maximum number of commands, and of fetches, that one tool-runner executes at a time. Without a limit,
    the tenant's share of the runner's places applies."""
    retention_days: float | None = Field(default=None, ge=0, le=36_500)
    """Days without activity after which a conversation is deleted; without a limit, never."""

    def within(self, window: Window) -> tuple[int | None, float | None]:
        """Return the limits of a window: tokens and USD."""
        if window == "day":
            return self.tokens_per_day, self.cost_usd_per_day
        return self.tokens_per_month, self.cost_usd_per_month

    @property
    def only_cost(self) -> bool:
        """Whether a day or month limits cost and none limits tokens: a model without a price has no limit."""
        tokens, cost_usd = zip(*map(self.within, WINDOWS), strict=True)
        return any(cost_usd) and not any(tokens)


class TenantSettings(Section):
    """Section `tenants`: the default limits, and different limits of named tenants."""

    default: TenantLimits = TenantLimits()
    named: dict[Token, TenantLimits] = Field(default_factory=dict[str, TenantLimits])
    """Limits by tenant; a missing field has the default value."""

    def value_of(self, tenant: str, limit: Callable[[TenantLimits], int | None]) -> int | None:
        """Return one limit of a tenant; None for no limit. Cheaper than `of`."""
        own = limit(self.named[tenant]) if tenant in self.named else None
        return (limit(self.default) if own is None else own) or None

    def of(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant; None for each unlimited field."""
        own = self.named.get(tenant, TenantLimits()).model_dump(exclude_none=True)
        merged = {**self.default.model_dump(exclude_none=True), **own}
        return TenantLimits(**{name: value for name, value in merged.items() if value})
