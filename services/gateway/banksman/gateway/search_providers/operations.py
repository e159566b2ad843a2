"""Set, test and remove the provider of a tenant's web searches; changes apply to runs that start then.

The choice is part of the tenant's policy, with which it reaches each run; the key is a secret of the tenant.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from banksman.bus.secrets import TenantSecrets
from banksman.contracts.assistants import ApprovalPolicy
from banksman.contracts.calls import SearchTarget
from banksman.contracts.errors import BadInput, BanksmanError, Conflict, NotFound
from banksman.contracts.tools import MAX_SECRET_CHARS, MIN_SECRET_CHARS, SearchApi, SearchChoice
from banksman.contracts.urls import HttpUrl, parse_url
from banksman.contracts.wire import Stored
from banksman.contracts.workspace_tools import WEB_SEARCH
from banksman.gateway.assistants.tenant_store import POLICY, PolicyStore
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.operations import SecretStore
from banksman.gateway.operation.caller import ADMIN, OPERATE, Caller
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestBody, StrictBody, provided
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors, body_of, problem_of
from banksman.runtime.addresses import is_public
from banksman.runtime.search import SearchSettings
from banksman.runtime.search_apis import MAX_RESPONSE_BYTES, SearchFailed, request_to, results_in

TEST_S: Final = 10.0

operations = Operations("tools", right=ADMIN)


class SearchProviderBody(RequestBody):
    """A provider of web searches, with its key."""

    provider: SearchApi
    url: HttpUrl | None = None
    """Address of the search API; None for that of the vendor. `searxng` needs one."""
    # The limits are checked by the store of secrets, whose error does not show the key.
    api_key: str | None = Field(
        default=None,
        repr=False,
        json_schema_extra={"minLength": MIN_SECRET_CHARS, "maxLength": MAX_SECRET_CHARS},
    )
    """If omitted, the stored key remains while provider and address stay the same."""


class SearchProviderView(Stored):
    """Who searches the web for the tenant's models, without the key."""

    provider: SearchApi | None
    """None if models are offered no search."""
    url: str | None = None
    source: Literal["settings", "tenant"] = "tenant"
    """`settings` if the operator decides, whose choice a tenant cannot replace."""
    setting: str | None = None
    """The operator's setting that decides."""
    has_key: bool = False


class SearchProviderTest(Stored):
    """What a provider returned for one search."""

    problem: str | None
    """The reason why it cannot be used; None if it returned results."""
    results: int
    """The number of results."""


@dataclass(frozen=True, slots=True)
class SearchProviders:
    policies: PolicyStore
    secrets: SecretStore
    values: TenantSecrets
    settings: SearchSettings
    http: PinnedHttp

    @operations.add("search_provider.read", "GET /context/search-provider")
    async def read_provider(self: Service, caller: CallerDep) -> SearchProviderView:
        """Read who searches the web for the tenant's models."""
        return self._view(caller.tenant, await self.policies.get(caller.tenant, POLICY))

    @operations.add(
        "search_provider.set",
        "PUT /context/search-provider",
        errors=(CONFLICT,),
        audit=("provider", "url"),
        confidential=True,
    )
    async def set_provider(
        self: Service, body: StrictBody[SearchProviderBody], caller: CallerDep
    ) -> SearchProviderView:
        """Set the provider of the tenant's web searches. Its models are offered `web_search` from then on."""
        if (setting := self.settings.setting_of(caller.tenant)) is not None:
            raise Conflict(f"the operator's setting {setting} names the provider, and comes first")
        policy = await self.policies.get(caller.tenant, POLICY)
        choice = SearchChoice(provider=body.provider, url=body.url, secret=_secret_of(body, policy.search))
        if choice.provider == "searxng" and choice.url is None:
            raise BadInput("url", None, "an address such as https://search.example.org/search")
        if choice.provider != "searxng" and choice.secret is None:
            raise BadInput("api_key", None, f"the key of {choice.provider}")
        if body.api_key is not None and choice.secret is not None:
            await self.secrets.set(caller, choice.secret, body.api_key, (WEB_SEARCH.name,))
        return await self._store(caller.tenant, policy, choice)

    @operations.add("search_provider.delete", "DELETE /context/search-provider", audit=())
    async def delete_provider(self: Service, caller: CallerDep) -> None:
        """Remove the tenant's provider and its key. Models are offered no search from then on."""
        policy = await self.policies.get(caller.tenant, POLICY)
        await self._store(caller.tenant, policy, None)
        if policy.search is not None and policy.search.secret is not None:
            with suppress(NotFound):
                await self.secrets.delete_secret(policy.search.secret, caller)

    @operations.add("search_provider.test", "POST /context/search-provider/test", errors=(MISSING,))
    async def test_provider(self: Service, caller: CallerDep) -> SearchProviderTest:
        """Search once with the tenant's provider and its key."""
        choice = (await self.policies.get(caller.tenant, POLICY)).search
        if choice is None:
            raise NotFound("search provider", caller.tenant)
        key = None
        try:
            if choice.secret is not None:
                found = await self.values.values(caller.tenant, (choice.secret,), WEB_SEARCH.name)
                key = found[choice.secret]
            target = SearchTarget(provider=choice.provider, url=choice.url, key=key)
            return SearchProviderTest(problem=None, results=await self._results(target, caller))
        except (TimeoutError, BanksmanError, SearchFailed, *RequestErrors) as error:
            return SearchProviderTest(problem=problem_of(error, key), results=0)

    async def _store(
        self, tenant: str, policy: ApprovalPolicy, choice: SearchChoice | None
    ) -> SearchProviderView:
        changed = policy.model_copy(update={"search": choice})
        return self._view(tenant, await self.policies.replace(tenant, changed, policy.revision))

    def _view(self, tenant: str, policy: ApprovalPolicy) -> SearchProviderView:
        setting, used = self.settings.setting_of(tenant), self.settings.of(tenant, policy.search)
        return SearchProviderView(
            provider=used and used.provider,
            url=used and used.url,
            source="tenant" if setting is None else "settings",
            setting=setting,
            has_key=used is not None and bool(used.key or used.secret),
        )

    async def _results(self, target: SearchTarget, caller: Caller) -> int:
        is_operator = not caller.rights.isdisjoint(OPERATE)
        request = request_to(target, "banksman", 1)
        url = parse_url(request.url)
        if target.key is not None and url.scheme != "https" and not is_operator:
            raise ValueError("its address needs https, because a key is sent to it")
        sent = self.http.request(
            request.method,
            url,
            request.headers,
            request.content or None,
            allowed=lambda address: is_operator or is_public(address),
        )
        async with asyncio.timeout(TEST_S), sent as response:
            body = await body_of(response, MAX_RESPONSE_BYTES)
        return len(list(results_in(target.provider, response.status, body)))


def _secret_of(body: SearchProviderBody, stored: SearchChoice | None) -> str | None:
    """Return the secret with the key: one for each provider, so that no other provider receives it."""
    if body.api_key is not None:
        return f"WEB_SEARCH_{body.provider.upper()}"
    stays = stored is not None and (stored.provider, stored.url) == (body.provider, body.url)
    return stored.secret if stored and stays else None


Service = Annotated[SearchProviders, provided(SearchProviders)]


async def build(base: Foundation) -> None:
    services = base.services
    values = TenantSecrets(base.bus, base.box)
    services.add(
        SearchProviders(
            services[PolicyStore], services[SecretStore], values, base.settings.search, PinnedHttp()
        )
    )


FEATURE = Feature(operations, build)
