"""The settings of a gateway."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr, field_validator

from banksman.bus.connection import NatsSettings
from banksman.contracts.administration import DEFAULT_RIGHTS, RIGHTS, Right
from banksman.contracts.urls import HttpUrl, Url, UrlRefused, parse_url
from banksman.contracts.wire import Token
from banksman.prompting.enhance import DEFAULT_BUDGET_TOKENS, DEFAULT_MAX_TOOLS
from banksman.runs.pricing import Price
from banksman.runs.runners.placement import WorkspaceSettings
from banksman.runtime.model_servers import ModelServers, ProviderEntry
from banksman.runtime.search import SearchSettings
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
MODEL_HOSTS = (
    "api.openai.com",
    "*.openai.azure.com",
    "api.anthropic.com",
    "app.backboard.io",
    "generativelanguage.googleapis.com",
    "api.mistral.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.x.ai",
    "openrouter.ai",
    "api.together.xyz",
    "api.fireworks.ai",
    "api.cerebras.ai",
    "api.cohere.com",
    "router.huggingface.co",
)
"""The hosts of vendors' APIs."""


class ApiKey(Section):
    """An API key of a client, of which only the digest is stored."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the key, 64 hex digits."""
    tenant: Token
    user: str = Field(min_length=1, max_length=200)
    modes: tuple[Mode, ...] = ("context", "passthrough")
    may_approve: bool = True
    """False removes the right `approve`."""
    rights: tuple[Right, ...] = DEFAULT_RIGHTS
    expires_at: AwareDatetime | None = None
    """None for a key that never expires."""


class OidcSettings(Section):
    """An OpenID Connect provider whose tokens are accepted as bearer tokens."""

    issuer: str
    """The issuer exactly as tokens name it: https, or http on the loopback interface."""
    audience: str
    """The audience of tokens for this gateway."""
    tenant_claim: str = "tenant"
    """The claim with the tenant; `a.b` is the member `b` of the claim `a`."""
    tenants: Mapping[str, Token] = {}
    """Tenants by value of that claim, which may be a domain; empty if its values are tenants."""
    default_tenant: Token | None = None
    """The tenant of tokens without that claim; None refuses them."""
    user_claim: str = "sub"
    """The claim that names the user; an `email` that the provider calls not verified is refused."""
    rights_claim: str = "rights"
    """The claim with a list of rights, or of values that `rights` maps to rights."""
    rights: Mapping[str, tuple[Right, ...]] = {}
    """Rights by value of that claim; empty if the values are rights. Other values grant nothing."""
    default_rights: tuple[Right, ...] = ()
    """The rights of tokens without that claim."""
    client_id: str | None = None
    """The web page's client, whose tokens are accepted too; None offers no sign-in on the page."""
    client_secret: SecretStr | None = None
    """None for a public client. Only the gateway uses it; the page does not receive it."""
    client_auth: Literal["basic", "post"] | None = None
    """How the gateway sends that secret; None for a way that the provider's documents name."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    authorization_parameters: Mapping[str, str] = {}
    """Further parameters with which the page sends users to the provider."""
    token: Literal["id_token", "access_token"] = "id_token"
    """The token with which the page uses the gateway."""
    end_session: bool = True
    """Whether a sign-out also ends the user's session at a provider that has an address for it."""
    key_pause_s: float = Field(default=10.0, ge=0)
    """Minimum seconds between two fetches of the provider's keys for tokens that name an unknown key."""

    @property
    def audiences(self) -> tuple[str, ...]:
        return tuple(one for one in (self.audience, self.client_id) if one is not None)

    @property
    def roles(self) -> Mapping[str, tuple[Right, ...]]:
        """The rights of each value of `rights_claim`; other values grant nothing."""
        return self.rights or {right: (right,) for right in RIGHTS}

    @field_validator("issuer")
    @classmethod
    def _secure(cls, issuer: str) -> str:
        try:
            secure_url(issuer)
        except UrlRefused as refused:
            raise ValueError(str(refused)) from refused
        return issuer


def secure_url(text: str) -> Url:
    """Parse a URL; raise `UrlRefused` if requests to it could be read or changed in transit."""
    url = parse_url(text)
    if url.scheme != "https" and not is_loopback(url.host):
        raise UrlRefused("must be an https address, or an http address of the loopback interface")
    return url


def is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


class Upstream(Section):
    """An API that passthrough forwards to."""

    name: Token
    base_url: HttpUrl
    """The base URL with its version: `https://api.openai.com/v1`."""
    api_key: SecretStr | None = None
    """None sends no key."""
    dialects: tuple[Dialect, ...] = ("openai",)
    models: tuple[str, ...] = ("*",)
    """Globs over the names of requested models. Of several matching upstreams, those that list the model come
    first, then the configured order applies; after a 404, the next one is tried."""
    normalise: bool = True
    """Whether to repair known deviations of chat completion streams on which clients fail. Other bytes are
    always forwarded unchanged."""

    def url(self, path: str, query: str = "") -> str:
        """Return the URL of an endpoint. The query of a request follows that of `base_url`, byte for byte."""
        base, _, fixed = self.base_url.partition("?")
        queries = "&".join(part for part in (fixed, query) if part)
        return f"{base.rstrip('/')}{path}{'?' if queries else ''}{queries}"

    def authorization(self, dialect: Dialect) -> dict[str, str]:
        """Return the header with the key; empty without a key."""
        if self.api_key is None:
            return {}
        key = self.api_key.get_secret_value()
        return {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}

    @property
    def list_headers(self) -> dict[str, str]:
        """The headers of a request for the list of models, which is at `/models` in each dialect."""
        dialect: Dialect = "openai" if "openai" in self.dialects else self.dialects[0]
        version = {"anthropic-version": "2023-06-01"} if dialect == "anthropic" else {}
        return self.authorization(dialect) | version

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


_DIALECTS: Mapping[str, tuple[Dialect, ...]] = {
    "openai": ("openai", "responses"),
    "demo": ("openai", "anthropic", "responses"),
    "chat": ("openai",),
    "responses": ("openai", "responses"),
    "anthropic": ("anthropic",),
}
"""The dialects by the name of a provider, otherwise by its API."""


class ModelSettings(ModelServers):
    """The part of section `models` that passthrough uses; agents use the rest."""

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """The upstreams for the configured keys and addresses, vendors before the demo model."""
        return upstreams_of(self.configured)


def upstreams_of(entries: Mapping[str, ProviderEntry]) -> tuple[Upstream, ...]:
    """Return what passthrough can forward to: providers with the API of OpenAI or Anthropic."""
    return tuple(
        Upstream(
            name=name,
            base_url=entry.base_url.rstrip("/") + ("/v1" if entry.api == "anthropic" else ""),
            api_key=entry.api_key,
            dialects=dialects,
        )
        for name, entry in sorted(entries.items(), key=lambda each: each[0] == "demo")
        if (dialects := _DIALECTS.get(name) or _DIALECTS.get(entry.api))
    )


class OfferSettings(BaseModel):
    """The part of section `agent` that enhanced prompts and the list of models use; agents use the rest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tools_enabled: bool = True
    prompt_budget_tokens: int = Field(default=DEFAULT_BUDGET_TOKENS, ge=100)
    max_offered_tools: int = Field(default=DEFAULT_MAX_TOOLS, ge=1, le=128)
    prices: dict[str, Price] = Field(default_factory=dict[str, Price])


class SmtpSettings(Section):
    """The mail server that sends the e-mails of webhooks."""

    host: str = Field(min_length=1)
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` is for a mail server on the same machine."""
    user: str | None = None
    """None for a mail server without sign-in."""
    password: SecretStr | None = None
    sender: str = Field(pattern=r"^[^\s<>@]+@[^\s<>@]+$")
    """The sender's address."""


class GatewaySettings(HealthSettings):
    """Section `gateway`."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0 uses a free port."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that may use the gateway, in addition to its own: `https://chat.example.org`."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a keyless gateway serves, in addition to those of the loopback interface."""
    keys: tuple[ApiKey, ...] = ()
    keys_file: Path | None = None
    """A file with a JSON list of further keys, as `banksman keys create` writes it. Changes apply at once."""
    webhook_addresses: tuple[str, ...] = ()
    """`host:port` pairs that webhooks may reach although they are not public, also without https."""
    smtp: SmtpSettings | None = None
    """The mail server of webhooks of the format `email`; None refuses them."""
    oidc: OidcSettings | None = None
    """A provider whose tokens are accepted in addition to keys."""
    keyless: bool | None = None
    """True accepts any key or none. None means True if `host` is a loopback address and there are no keys and
    no `oidc`."""
    keyless_tenant: Token = "local"
    keyless_user: str = Field(default="local", min_length=1, max_length=200)
    default_model: str | None = Field(default=None, max_length=200)
    """`provider:model` for runs that name no model; None uses the demo model if there is a model server."""
    upstreams: tuple[Upstream, ...] = ()
    """Where passthrough forwards to; empty uses the vendors and the model server of section `models`."""
    tenant_model_hosts: tuple[str, ...] = MODEL_HOSTS
    """Globs of the hosts that administrators of tenants may name as servers of models; operators name any."""
    outputs: NatsSettings | None = None
    """The connection to the runners' account, which stores complete outputs; None uses the gateway's own."""
    archive_days: float = Field(default=0, ge=0, le=36_500)
    """Days without activity after which the log of a conversation moves to the archive; 0 for no limit."""
    archive_above_percent: int = Field(default=75, ge=0, lt=100)
    """Fill of the logs above which conversations that were not used for a day move too; 0 for no limit."""
    titles: bool = True
    """Whether a model writes the titles of conversations, with one request each."""
    title_model: str | None = Field(default=None, max_length=200)
    """`provider:model` for titles, such as a cheap one; None for the model of the assistant `default`."""
    notices: tuple[str, ...] = ()
    """Sentences that the web page shows to every user."""
    max_connections: int | None = Field(default=None, ge=8)
    """Maximum client connections, websockets included; at most half of them with one key. None means three
    quarters of the files that the process may open, at most 20,000."""
    max_unknown_connections: int | None = Field(default=None, ge=2)
    """Maximum connections of clients that have not sent an accepted key; at the limit, a new connection ends
    the oldest of them. None means a quarter of `max_connections`."""
    max_unknown_connections_per_address: int = Field(default=256, ge=1)
    """The same of one IPv4 address or one IPv6 network of 64 bits."""
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses or networks of reverse proxies, which have no limit per address and whose `X-Forwarded-For`
    names the address of a client."""
    header_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds from the start of a connection, or from the first byte of a further request, to the end of the
    headers; then the connection is closed."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a body may stay below 8 KiB per second, or that a client may not read a response; then
    the connection is closed."""
    hello_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds within which a websocket must send `hello`; otherwise it is closed."""
    frames_per_s: int = Field(default=30, ge=1)
    """Frames per second that a websocket may send, with bursts of twice as many; further ones are refused."""
    message_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds from the first to the last byte of a websocket message; then the websocket is closed."""
    max_unfinished_bytes: int = Field(default=16 * 1024 * 1024, ge=1024 * 1024)
    """Maximum bytes of all incomplete websocket messages; above it, the oldest messages are refused and their
    websockets closed with 4429."""
    max_sockets_per_user: int = Field(default=500, ge=1)
    """Websockets of one user that may be open at once; further ones are closed with 4429."""
    requests_per_s: float | None = Field(default=None, ge=0)
    """Requests per second with one key over HTTP, and of one tenant over NATS, with bursts of four times as
    many; further ones are refused with 429 or `rate_limited`. None means 100, but no limit over HTTP in
    keyless mode, where all clients are one user; 0 means no limit."""
    max_waiting_runs: int = Field(default=10_000, ge=1)
    """Maximum runs of all tenants that are queued or driven; further ones are refused with 503. One tenant
    takes at most three quarters of them, even if no other tenant has runs."""
    max_waiting_runs_per_tenant: int = Field(default=2_000, ge=1)
    """Maximum runs of one tenant that are queued or driven; further ones are refused with 429. A tenant's
    `waiting_runs` in section `tenants` replaces it."""
    max_queued_per_conversation: int = Field(default=100, ge=1)
    """Maximum runs of one conversation that wait for its open run; further ones are refused with 429."""
    max_schedules_per_tenant: int = Field(default=200, ge=0)
    """Maximum schedules of a tenant."""
    min_schedule_interval_s: int = Field(default=60, ge=60)
    """Minimum seconds between two times of a schedule."""
    max_body_bytes: int = Field(default=10 * 1024 * 1024, gt=0)
    """A larger body is refused with 413; operations that declare no more accept 1 MiB."""
    json_bytes_per_s: int = Field(default=4 * 1024 * 1024, ge=1)
    """Bytes of JSON per second that one tenant may send, with bursts of four times as many; further ones are
    refused with 429 or `rate_limited`. Each value in the JSON counts as 128 bytes, and a body of passthrough
    as a fourth of its bytes."""
    max_upload_bytes: int = Field(default=100 * 1024 * 1024, gt=0)
    """A larger file is refused with 413."""
    upstream_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without a byte from an upstream after which its request fails."""
    drain_s: float = Field(default=10.0, ge=0)
    """Seconds that open requests may take when the gateway stops."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ipaddress.ip_network(proxy)
        return proxies

    @property
    def origins(self) -> frozenset[str]:
        """`allowed_origins` as browsers write them."""
        return frozenset(origin.rstrip("/").lower() for origin in self.allowed_origins)

    @property
    def serves_without_key(self) -> bool:
        """Whether requests without a key are served, as long as `keys_file` has no keys."""
        if self.keyless is not None:
            return self.keyless
        return is_loopback(self.host) and not self.keys and self.oidc is None

    @property
    def rate(self) -> float | None:
        """HTTP requests per second with one key; None for no limit."""
        unlimited = self.requests_per_s is None and self.serves_without_key
        return None if unlimited else self.tenant_rate

    @property
    def tenant_rate(self) -> float | None:
        """Requests per second of one tenant over NATS; None for no limit."""
        return DEFAULT_REQUESTS_PER_S if self.requests_per_s is None else self.requests_per_s or None


class GatewayServiceSettings(ServiceSettings):
    """All settings of a gateway process."""

    nats: NatsSettings = NatsSettings()
    gateway: GatewaySettings = GatewaySettings()
    approvals: ApprovalSettings = ApprovalSettings()
    models: ModelSettings = ModelSettings()
    tenants: TenantSettings = TenantSettings()
    agent: OfferSettings = OfferSettings()
    workspaces: WorkspaceSettings = WorkspaceSettings()
    search: SearchSettings = SearchSettings()

    def waiting_runs(self, tenant: str) -> int:
        """Return the maximum number of queued and driven runs of a tenant."""
        own = self.tenants.value_of(tenant, lambda limits: limits.waiting_runs)
        return own or self.gateway.max_waiting_runs_per_tenant

    @property
    def default_model(self) -> str | None:
        """The model of runs that name none; None if none is configured."""
        return self.gateway.default_model or (DEMO_MODEL if self.models.demo_base_url else None)

    @property
    def generates_titles(self) -> bool:
        """Whether a model writes titles; the demo model cannot."""
        model = self.gateway.title_model or self.default_model or DEMO_MODEL
        return self.gateway.titles and not model.startswith("demo:")

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return self.gateway.upstreams or self.models.upstreams
