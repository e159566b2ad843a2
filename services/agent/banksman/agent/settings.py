"""Settings of the agent service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from banksman.agent.catalog import DEFAULT_AWAY_S
from banksman.agent.pricing import Price
from banksman.agent.providers.base import ProviderSettings
from banksman.bus.connection import NatsSettings
from banksman.prompting.enhance import DEFAULT_BUDGET_TOKENS, DEFAULT_MAX_TOOLS
from banksman.runs.placement import WorkspaceSettings
from banksman.runtime.settings import ApprovalSettings, HealthSettings, ServiceSettings
from banksman.runtime.tenants import TenantSettings


class AgentSettings(HealthSettings):
    """How runs are driven."""

    slots: int = Field(default=64, ge=1, le=1000)
    """Runs that a process drives at once; parked runs take none."""
    tools_enabled: bool = True
    """False turns tools off for the whole system; chat goes on as plain text."""
    away_s: float = Field(default=DEFAULT_AWAY_S, ge=0)
    """Seconds that whoever serves a tool may take to restart. So long a call of it is accepted though nobody
    serves it now, and waits; after that its server counts as gone, and its tools are withdrawn."""
    approval_expiry_s: float = Field(default=7 * 86_400, gt=0)
    """Seconds a question to a person stays open."""
    prompt_budget_tokens: int = Field(default=DEFAULT_BUDGET_TOKENS, ge=100)
    """Tokens that tools and instructions may take in a system prompt."""
    max_offered_tools: int = Field(default=DEFAULT_MAX_TOOLS, ge=1, le=128)
    """Tools of one request; of more, those are offered that matter most to the conversation."""
    drain_s: float = Field(default=15.0, ge=0)
    """Seconds that driven runs get at the end of the process before others take them over."""
    default_model: str | None = None
    """Warmed after start; the gateway chooses it where an assistant names none."""
    context_tokens: dict[str, Annotated[int, Field(ge=1_000)]] = Field(default_factory=dict[str, int])
    """Tokens that a model can read in one request, by the beginning of `provider:model`; goes before the
    built-in table. An assistant's `limits.context_tokens` goes before both."""
    compact_at: float = Field(default=0.75, gt=0, lt=1)
    """Share of those tokens; a request that would have more is preceded by a compaction."""
    kept_iterations: int = Field(default=4, ge=0, le=100)
    """Replies of the model that a compaction keeps word for word, with their results, as far as they fit."""
    compaction_model: str | None = None
    """`provider:model` that writes summaries; None for the model of the run."""
    prices: dict[str, Price] = Field(default_factory=dict[str, Price])
    """USD per million tokens by `provider:model`; replaces and extends the built-in table."""


class AgentServiceSettings(ServiceSettings):
    """All sections that an agent reads."""

    nats: NatsSettings = NatsSettings()
    agent: AgentSettings = AgentSettings()
    models: ProviderSettings = ProviderSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    tenants: TenantSettings = TenantSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
