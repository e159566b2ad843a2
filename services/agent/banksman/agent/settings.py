"""Settings of the agent service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from banksman.agent.providers.base import ProviderSettings
from banksman.agent.slots import memory_bytes, slots_by_memory
from banksman.agent.tools import DEFAULT_AWAY_S
from banksman.bus.connection import NatsSettings
from banksman.contracts.messages import Usage
from banksman.prompting.enhance import DEFAULT_BUDGET_TOKENS, DEFAULT_MAX_TOOLS
from banksman.runs.pricing import Price, cost
from banksman.runs.runners.placement import WorkspaceSettings
from banksman.runtime.search import SearchSettings
from banksman.runtime.settings import ApprovalSettings, HealthSettings, ServiceSettings
from banksman.runtime.tenants import TenantSettings


class AgentSettings(HealthSettings):
    """Settings of runs and their model requests."""

    slots: int | None = Field(default=None, ge=1, le=10_000)
    """Maximum runs that a process drives at a time; parked runs do not count. None chooses it by the memory
    of the process. Tenants share the slots: a single active tenant takes at most three quarters, and a
    tenant without a run may take a slot above this number."""
    tools_enabled: bool = True
    """False turns tools off for the whole system; runs continue as plain text."""
    away_s: float = Field(default=DEFAULT_AWAY_S, ge=0)
    """Seconds that a tool server may take to restart. Meanwhile a call of its tools is accepted and waits;
    after that the server counts as gone, and its tools are withdrawn."""
    approval_expiry_s: float = Field(default=7 * 86_400, gt=0)
    """Seconds until an approval request expires."""
    prompt_budget_tokens: int = Field(default=DEFAULT_BUDGET_TOKENS, ge=100)
    """Tokens that tools and instructions may take in a system prompt."""
    max_offered_tools: int = Field(default=DEFAULT_MAX_TOOLS, ge=1, le=128)
    """Maximum tools of one request; if more exist, the most relevant to the conversation are offered."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that open runs get when the process stops, before other agents take them over."""
    default_model: str | None = None
    """The model whose provider is warmed after the start, usually that of `gateway.default_model`."""
    context_tokens: dict[str, Annotated[int, Field(ge=1_000)]] = Field(default_factory=dict[str, int])
    """Context sizes of models in tokens, by the start of `provider:model`; they take precedence over the
    built-in table. An assistant's `limits.context_tokens` takes precedence over both."""
    compact_at: float = Field(default=0.75, gt=0, lt=1)
    """Share of the context size above which a request is preceded by a compaction."""
    kept_iterations: int = Field(default=4, ge=0, le=100)
    """Replies that a compaction keeps unchanged with their results, as far as they fit."""
    compaction_model: str | None = None
    """`provider:model` that writes summaries; None for the model of the run."""
    prices: dict[str, Price] = Field(default_factory=dict[str, Price])
    """USD per million tokens by `provider:model`; replaces and extends the built-in table."""

    @property
    def most_slots(self) -> int:
        return self.slots or slots_by_memory(memory_bytes())

    def priced(self, model: str, usage: Usage) -> Usage:
        """Return a usage of `provider:model` with its cost."""
        return usage.model_copy(update={"cost_usd": cost(model, usage, self.prices)})


class AgentServiceSettings(ServiceSettings):
    """All sections that an agent reads."""

    nats: NatsSettings = NatsSettings()
    agent: AgentSettings = AgentSettings()
    models: ProviderSettings = ProviderSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    tenants: TenantSettings = TenantSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    search: SearchSettings = SearchSettings()

    def running_runs(self, tenant: str) -> int | None:
        """Return how many runs of a tenant this process drives at a time; None for its share."""
        return self.tenants.value_of(tenant, lambda limits: limits.running_runs)
