"""Set, test and remove the servers of models of a tenant; changes apply to the next model request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from pydantic import Field

from banksman.bus.model_servers import TenantModelServers, sealed_name
from banksman.bus.secrets import SecretBox
from banksman.contracts.errors import BadInput, BanksmanError, Conflict, Forbidden, NotFound
from banksman.contracts.model_servers import (
    MAX_LISTED_MODELS,
    ListedModel,
    ModelApi,
    ModelServer,
    ProviderName,
    StoredModelServer,
)
from banksman.contracts.tools import MAX_SECRET_CHARS, MIN_SECRET_CHARS
from banksman.contracts.urls import HttpUrl, parse_url
from banksman.contracts.wire import Stored, Timestamp
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN, OPERATE, Caller
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors, body_of, problem_of
from banksman.gateway.settings import GatewayServiceSettings, Upstream, upstreams_of
from banksman.runs.ports import Clock
from banksman.runtime.addresses import is_public
from banksman.runtime.model_servers import MAX_LIST_BYTES, ModelServers, ProviderEntry, listed_models

MAX_SERVERS: Final = 20
"""Servers of one tenant."""
TEST_S: Final = 10.0
OWN_SETTINGS: Final[Mapping[str, str]] = {
    "anthropic": "BANKSMAN_MODELS__ANTHROPIC_API_KEY",
    "openai": "BANKSMAN_MODELS__OPENAI_API_KEY",
    "backboard": "BANKSMAN_MODELS__BACKBOARD_API_KEY",
    "demo": "BANKSMAN_MODELS__DEMO_BASE_URL",
}
"""The operator's setting of each provider that has one of its own."""

operations = Operations("models", right=ADMIN)


class ModelServerBody(RequestBody):
    """The address and key of a server of models."""

    api: ModelApi | None = None
    """None for the API of the provider with this name, otherwise `chat`."""
    base_url: HttpUrl | None = None
    """The base URL as the vendor documents it; None for the address of the provider with this name."""
    # The limits are checked by the service, whose error does not show the key.
    api_key: str | None = Field(
        default=None,
        repr=False,
        json_schema_extra={"minLength": MIN_SECRET_CHARS, "maxLength": MAX_SECRET_CHARS},
    )
    """8 to 8,000 characters. If omitted, the stored key remains while the address stays the same."""


class ModelServerView(Stored):
    """A server of models that the tenant's runs can use, without its key."""

    name: ProviderName
    api: ModelApi
    base_url: str
    source: Literal["settings", "tenant"]
    """`settings` for a server of the operator, which a tenant cannot replace."""
    setting: str | None = None
    """The operator's setting that names it."""
    has_key: bool
    models: tuple[ListedModel, ...] = ()
    """What the server listed when it was last tested."""
    updated_at: Timestamp | None = None
    updated_by: str | None = None


class ModelServerTest(Stored):
    """What a server of models returned for its list of models."""

    problem: str | None
    """The reason why its models cannot be used; None if it listed them."""
    models: tuple[ListedModel, ...]
    """The first 200 names."""


class ModelServerStore:
    def __init__(
        self, servers: TenantModelServers, settings: GatewayServiceSettings, box: SecretBox, clock: Clock
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._box = box
        self._clock = clock
        self._http = PinnedHttp()

    @operations.add("model_server.list", "GET /context/model-servers")
    async def list_model_servers(self: Service, caller: CallerDep) -> Listing[ModelServerView]:
        """List the servers of models: those of the operator's settings, then those of the tenant."""
        configured = self._settings.models.configured
        own = [one async for one in self._stored(caller.tenant) if one.name not in configured]
        views = [_configured(name, entry) for name, entry in configured.items()]
        return Listing[ModelServerView](items=(*views, *(_view(one) for one in own)))

    @operations.add(
        "model_server.set",
        "PUT /context/model-servers/{name}",
        errors=(CONFLICT,),
        audit=("api", "base_url"),
        confidential=True,
    )
    async def set_model_server(
        self: Service, name: ProviderName, body: StrictBody[ModelServerBody], caller: CallerDep
    ) -> ModelServerView:
        """Set a server of models; the models `name:…` of the tenant's runs are requested from it."""
        if name in self._settings.models.configured:
            raise Conflict(f"the operator's settings name the provider {name!r}, which comes first")
        stored = {one.name: one async for one in self._stored(caller.tenant)}
        if name not in stored and len(stored) >= MAX_SERVERS:
            raise Conflict(f"the tenant has {MAX_SERVERS} servers of models; delete some first")
        server = self._server(name, body, caller, stored.get(name))
        await self._servers.bucket.put(f"{caller.tenant}.{name}", server)
        return _view(server)

    @operations.add(
        "model_server.delete", "DELETE /context/model-servers/{name}", errors=(MISSING,), audit=()
    )
    async def delete_model_server(self: Service, name: ProviderName, caller: CallerDep) -> None:
        """Delete a server of models and its key. Runs that name one of its models fail from then on."""
        await self._get(caller.tenant, name)
        await self._servers.bucket.delete(f"{caller.tenant}.{name}")

    @operations.add(
        "model_server.test", "POST /context/model-servers/{name}/test", errors=(MISSING, CONFLICT)
    )
    async def test_model_server(self: Service, name: ProviderName, caller: CallerDep) -> ModelServerTest:
        """Request the list of models from a server of the tenant, with its key, and store the names."""
        server = await self._get(caller.tenant, name)
        entry = self._servers.opened(caller.tenant, server)
        if entry is None:
            raise Conflict(f"the key of {name!r} was encrypted with another signing key: set it again")
        upstream = next(iter(upstreams_of({name: entry})), None)
        if upstream is None:
            raise Conflict(f"servers with the API {entry.api} cannot be tested: they list no models")
        try:
            models = await self._listed(upstream, caller)
        except (TimeoutError, BanksmanError, *RequestErrors) as error:
            return ModelServerTest(problem=problem_of(error, entry.key or None), models=())
        await self._servers.bucket.put(
            f"{caller.tenant}.{name}", server.model_copy(update={"models": models})
        )
        return ModelServerTest(problem=None, models=models)

    def _server(
        self, name: str, body: ModelServerBody, caller: Caller, stored: StoredModelServer | None
    ) -> StoredModelServer:
        known = ModelServers().entries.get(name)
        base_url = body.base_url or (stored.base_url if stored else known.base_url if known else None)
        if base_url is None:
            raise BadInput("base_url", None, f"the address of the API: {name!r} is no known provider")
        self._check_host(caller, base_url)
        api = body.api or (stored.api if stored else known.api if known else "chat")
        server = StoredModelServer(
            name=name, api=api, base_url=base_url, updated_at=self._clock.now(), updated_by=caller.user
        )
        place = sealed_name(caller.tenant, server)
        if body.api_key is not None:
            _check_key(body.api_key)
            return server.model_copy(update={"sealed_key": self._box.seal(body.api_key, place)})
        unmoved = stored is not None and sealed_name(caller.tenant, stored) == place
        return server.model_copy(update={"sealed_key": stored.sealed_key}) if stored and unmoved else server

    def _check_host(self, caller: Caller, base_url: str) -> None:
        """Refuse an address that only operators may name: agents would send requests to it."""
        if not caller.rights.isdisjoint(OPERATE):
            return
        url, hosts = parse_url(base_url), self._settings.gateway.tenant_model_hosts
        if url.scheme != "https" or not any(fnmatchcase(url.host, pattern) for pattern in hosts):
            raise Forbidden(
                f"base_url names {url.origin}; without the right operator it must be https and one of "
                + ", ".join(hosts)
            )

    async def _get(self, tenant: str, name: str) -> StoredModelServer:
        entry = await self._servers.bucket.get(f"{tenant}.{name}")
        if entry is None:
            raise NotFound("model server", name)
        return entry.value

    async def _stored(self, tenant: str) -> AsyncIterator[StoredModelServer]:
        async for entry in self._servers.bucket.entries(tenant):
            yield entry.value

    async def _listed(self, upstream: Upstream, caller: Caller) -> tuple[str, ...]:
        """Return the names of a server's models; raise one of `RequestErrors` with the reason."""
        is_operator = not caller.rights.isdisjoint(OPERATE)
        url = parse_url(upstream.url("/models"))
        request = self._http.request(
            "GET", url, upstream.list_headers, allowed=lambda address: is_operator or is_public(address)
        )
        async with asyncio.timeout(TEST_S), request as response:
            body = await body_of(response, MAX_LIST_BYTES)
        hint = "" if url.target.strip("/") != "models" else "most servers need /v1 in base_url; "
        if response.status != 200:
            text = body[:1_000].decode(errors="replace")
            raise ValueError(f"{hint}the server returned {response.status}: {text}")
        try:
            names = [entry["id"] for entry in listed_models(body)]
        except ValueError as error:
            raise ValueError(f"{hint}{error}") from error
        return tuple(name for name in names if 0 < len(name) <= 120)[:MAX_LISTED_MODELS]


def _check_key(key: str) -> None:
    """Check a key. Errors do not contain it."""
    if not MIN_SECRET_CHARS <= len(key) <= MAX_SECRET_CHARS or not key.isascii() or not key.isprintable():
        rule = f"{MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} printable ASCII characters"
        raise BadInput("api_key", None, rule)


def _configured(name: str, entry: ProviderEntry) -> ModelServerView:
    return ModelServerView(
        name=name,
        api=entry.api,
        base_url=entry.base_url,
        source="settings",
        setting=OWN_SETTINGS.get(name, "BANKSMAN_MODELS__PROVIDERS"),
        has_key=entry.api_key is not None,
    )


def _view(server: StoredModelServer) -> ModelServerView:
    return ModelServerView(
        source="tenant",
        has_key=server.sealed_key is not None,
        **ModelServer.model_validate(dict(server)).model_dump(),
    )


Service = Annotated[ModelServerStore, provided(ModelServerStore)]


async def build(base: Foundation) -> None:
    servers = await base.stack.enter_async_context(TenantModelServers(base.bus, base.box))
    base.services.add(
        servers,
        ModelServerStore(servers, base.settings, base.box, base.clock),
        ModelNames.of_settings(base.settings, servers.entries),
    )


FEATURE = Feature(operations, build)
