"""What a gateway is configured by."""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr

from banksman.bus.connection import NatsSettings
from banksman.contracts.wire import Token
from banksman.prompting.enhance import DEFAULT_BUDGET_TOKENS, DEFAULT_MAX_TOOLS
from banksman.runs.placement import WorkspaceSettings
from banksman.runtime.settings import ApprovalSettings, HealthSettings, Section, ServiceSettings
from banksman.runtime.tenants import TenantSettings

Mode = Literal["context", "passthrough"]
"""
context      conversations, runs, approvals, files, assistants, prompts, workflows, the websocket
passthrough  the model APIs under `/v1`
"""

Dialect = Literal["openai", "anthropic", "responses"]
"""
openai     `/v1/chat/completions`
anthropic  `/v1/messages`
responses  `/v1/responses`
"""

DEMO_MODEL = "demo:demo"
DEFAULT_REQUESTS_PER_S = 100.0
OPENAI_BASE_URL = "https://api.openai.com/v1"


class ApiKey(Section):
    """A key of a client, known by its digest only."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the key, 64 hex digits."""
    tenant: Token
    user: str = Field(min_length=1, max_length=200)
    modes: tuple[Mode, ...] = ("context", "passthrough")
    may_approve: bool = True
    expires_at: AwareDatetime | None = None
    """None for a key that never expires."""


class Upstream(Section):
    """An API that passthrough forwards to."""

    name: Token
    base_url: str
    """With its version: `https://api.openai.com/v1`."""
    api_key: SecretStr | None = None
    """None sends no key."""
    dialects: tuple[Dialect, ...] = ("openai",)
    models: tuple[str, ...] = ("*",)
    """Globs over the names of the models that it is asked for; the first upstream that matches is taken."""

    def serves(self, model: str) -> bool:
        """Whether requests for this model go here."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class ModelSettings(BaseModel):
    """What passthrough takes from section `models`; the rest of it is for agents."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: str = "https://api.anthropic.com"
    openai_api_key: SecretStr | None = None
    openai_base_url: str = OPENAI_BASE_URL
    demo_base_url: str | None = None
    """The model server's OpenAI address; None when there is no model server."""

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """The upstreams that follow from the keys and addresses, vendors before the demo model."""
        found: list[Upstream] = []
        if self.anthropic_api_key:
            base = f"{self.anthropic_base_url.rstrip('/')}/v1"
            found.append(
                Upstream(
                    name="anthropic",
                    base_url=base,
                    api_key=self.anthropic_api_key,
                    dialects=("anthropic",),
                )
            )
        if self.openai_api_key or self.openai_base_url != OPENAI_BASE_URL:
            found.append(
                Upstream(
                    name="openai",
                    base_url=self.openai_base_url,
                    api_key=self.openai_api_key,
                    dialects=("openai", "responses"),
                )
            )
        if self.demo_base_url:
            found.append(Upstream(name="demo", base_url=self.demo_base_url, dialects=("openai", "anthropic")))
        return tuple(found)


class OfferSettings(BaseModel):
    """What showing an enhanced prompt takes from section `agent`; the rest of it is for agents."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    tools_enabled: bool = True
    prompt_budget_tokens: int = Field(default=DEFAULT_BUDGET_TOKENS, ge=100)
    max_offered_tools: int = Field(default=DEFAULT_MAX_TOOLS, ge=1, le=128)


class GatewaySettings(HealthSettings):
    """Section `gateway`."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0 takes a free one."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that may use the gateway, beside its own: `https://chat.example.org`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a keyless gateway answers to, beside those of the loopback interface."""
    keys: tuple[ApiKey, ...] = ()
    keyless: bool | None = None
    """True accepts any or no key. None does so when bound to the loopback interface and no keys are set."""
    keyless_tenant: Token = "local"
    keyless_user: str = Field(default="local", min_length=1, max_length=200)
    default_model: str | None = Field(default=None, max_length=200)
    """`provider:model` of runs that name none; None takes the demo model where there is one."""
    upstreams: tuple[Upstream, ...] = ()
    """Where passthrough forwards to; empty takes those that follow from section `models`."""
    outputs: NatsSettings | None = None
    """The runners' account, where whole outputs are kept; None when it is the gateway's own."""
    notices: tuple[str, ...] = ()
    """Sentences that every page shows."""
    hello_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds until a websocket must have said hello; then it is closed."""
    frames_per_s: int = Field(default=30, ge=1)
    """Frames a websocket may send, over a burst of twice as many; further ones are refused."""
    requests_per_s: float | None = Field(default=None, ge=0)
    """HTTP requests with one key, over a burst of four times as many; further ones are refused with 429. None
    takes 100, and no bound where no key is needed, for there all are one; 0 sets no bound."""
    max_waiting_runs: int = Field(default=10_000, ge=1)
    """Runs of all tenants that agents have not ended or parked; further ones are refused with 503."""
    max_waiting_runs_per_tenant: int = Field(default=2_000, ge=1)
    """Those of one tenant; further ones are refused with 429."""
    max_body_bytes: int = Field(default=10 * 1024 * 1024, gt=0)
    """A larger body is refused with 413."""
    max_upload_bytes: int = Field(default=100 * 1024 * 1024, gt=0)
    """A larger file is refused with 413."""
    upstream_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a byte from an upstream before it counts as gone."""
    drain_s: float = Field(default=10.0, ge=0)
    """Seconds that open requests get when the gateway ends."""

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def accepts_anybody(self) -> bool:
        """Whether a key is not needed."""
        return self.on_loopback and not self.keys if self.keyless is None else self.keyless

    @property
    def rate(self) -> float | None:
        """HTTP requests a second with one key; None for no bound."""
        if self.requests_per_s is None:
            return None if self.accepts_anybody else DEFAULT_REQUESTS_PER_S
        return self.requests_per_s or None


class GatewayServiceSettings(ServiceSettings):
    """All that a gateway reads."""

    nats: NatsSettings = NatsSettings()
    gateway: GatewaySettings = GatewaySettings()
    approvals: ApprovalSettings = ApprovalSettings()
    models: ModelSettings = ModelSettings()
    tenants: TenantSettings = TenantSettings()
    agent: OfferSettings = OfferSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()

    @property
    def default_model(self) -> str | None:
        """The model of runs that name none; None when it cannot be told."""
        return self.gateway.default_model or (DEMO_MODEL if self.models.demo_base_url else None)

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Where passthrough forwards to."""
        return self.gateway.upstreams or self.models.upstreams
