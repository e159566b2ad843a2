"""The providers of this process, by name; `Library` reaches vendors through pydantic-ai-slim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers.anthropic import Anthropic
from banksman.agent.providers.base import DeltaSink, Provider, ProviderSettings
from banksman.agent.providers.openai import OpenAI
from banksman.agent.providers.retrying import RetryingProvider
from banksman.contracts.errors import BadInput, ProviderFailed
from banksman.runs.pricing import load_prices
from banksman.runtime.background import Background, BackgroundTask
from banksman.runtime.model_servers import ProviderEntry

if TYPE_CHECKING:
    from banksman.agent.providers.library_api import LibraryApi


class Library(RetryingProvider["LibraryApi"]):
    """The `Provider` of one vendor. The library is imported before its first request: 1.3 s of CPU."""

    own_api = True

    def make_client(self) -> LibraryApi:
        try:
            from banksman.agent.providers.library_api import LibraryApi

            return LibraryApi(self.name, self.settings, self.entry)
        except ImportError as error:
            text = f"{self.entry.api} needs the package's extra `library`, which is not installed"
            raise ProviderFailed(self.name, f"{text} ({error.name})") from error

    def attempts(self, request: ModelRequest, deltas: DeltaSink) -> Callable[[], Awaitable[ModelReply]]:
        return partial(self._attempt, request, deltas)

    async def _attempt(self, request: ModelRequest, deltas: DeltaSink) -> ModelReply:
        silence_s = self.silence_s(request.model)
        # In a thread: the import would stop all runs of this process for seconds.
        await asyncio.to_thread(self.warm)
        try:
            return await self.client.complete(
                instructed(request), self.profile(request.model), deltas, silence_s
            )
        except TimeoutError as error:
            raise self.silent(request.model) from error


DEMO_MODEL = "demo"
"""The model of the model server. The name without a provider means `demo:demo`."""


MAX_OF_TENANTS: Final = 256
"""Providers of tenants that are kept; the one that was created first is then replaced."""
RETIRED_S: Final = 3_600.0
"""Seconds until a replaced provider is closed, for the requests that use it."""


@dataclass(frozen=True, slots=True)
class _Created:
    entry: ProviderEntry
    provider: Provider


class Providers:
    """Creates each provider on first use and reuses it.

    The operator's settings come before the servers that a tenant's administrators set.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        of_tenant: Callable[[str], Mapping[str, ProviderEntry]] = lambda _tenant: {},
        background: Background | None = None,
    ) -> None:
        """Create the providers; `of_tenant` returns the servers of a tenant by name."""
        self._settings = settings
        self._of_tenant = of_tenant
        self._background = background or Background()
        # Each read of the property checks all its addresses, and each model request needs one.
        self._entries = settings.entries
        self._configured = settings.configured
        self._created: dict[str, Provider] = {}
        self._of_tenants: dict[tuple[str, str], _Created] = {}
        self._retired: set[BackgroundTask] = set()

    def choose(self, model: str, tenant: str | None = None) -> tuple[Provider, str]:
        """Return a model's provider and the vendor's name of it.

        Args:
            tenant: Whose servers are used beside those of the settings; None for only the latter.

        Raises:
            BadInput: The provider is unknown.
        """
        provider, _, name = (DEMO_MODEL, "", DEMO_MODEL) if model == DEMO_MODEL else model.partition(":")
        own: Mapping[str, ProviderEntry] = {}
        if tenant is not None and provider not in self._configured:
            own = self._of_tenant(tenant)
            if provider in own and name:
                return self._own(tenant, provider, own[provider]), name
        if provider not in self._entries or not name:
            known = ", ".join(dict.fromkeys((*self._entries, *own)))
            raise BadInput("model", model, f"provider:model with a provider of {known}")
        if provider not in self._created:
            self._created[provider] = self._create(provider, self._entries[provider])
        return self._created[provider], name

    @property
    def max_wait_s(self) -> float:
        """Seconds for which a request is repeated while no model accepts it."""
        return self._settings.max_wait_s

    def context_tokens(self, model: str, tenant: str | None = None) -> int | None:
        """Return the context size that the server of `provider:model` told; None if it told none so far."""
        provider, name = self.choose(model, tenant)
        return provider.facts(name).context_tokens

    async def warm(self, model: str) -> None:
        """Import the library and the price list that the first request needs, off the event loop."""
        provider, _ = self.choose(model)
        await asyncio.to_thread(provider.warm)
        await asyncio.to_thread(load_prices, model)

    async def close(self) -> None:
        for task in tuple(self._retired):
            await task.stop()
        for provider in (*self._created.values(), *(own.provider for own in self._of_tenants.values())):
            await provider.close()
        self._created.clear()
        self._of_tenants.clear()

    def _own(self, tenant: str, name: str, entry: ProviderEntry) -> Provider:
        """Return the provider of a tenant; a changed entry replaces it."""
        found = self._of_tenants.get((tenant, name))
        if found is not None and found.entry == entry:
            return found.provider
        if found is not None:
            self._retire(tenant, name)
        elif len(self._of_tenants) >= MAX_OF_TENANTS:
            self._retire(*next(iter(self._of_tenants)))
        created = self._create(name, entry)
        self._of_tenants[tenant, name] = _Created(entry, created)
        return created

    def _retire(self, tenant: str, name: str) -> None:
        retired = self._of_tenants.pop((tenant, name)).provider
        task = self._background.run("retired-provider", partial(_close_later, retired))
        self._retired.add(task)
        task.when_ended(lambda: self._retired.discard(task))

    def _create(self, provider: str, entry: ProviderEntry) -> Provider:
        settings = self._settings
        match entry.api:
            case "chat" | "responses":
                return OpenAI(provider, settings, entry)
            case "anthropic":
                return Anthropic(provider, settings, entry)
            case "backboard":
                from banksman.agent.providers.backboard import Backboard

                return Backboard(provider, settings, entry)
            case "google" | "bedrock" | "mistral" | "cohere" | "huggingface":
                return Library(provider, settings, entry)
            case _:
                assert_never(entry.api)


async def _close_later(provider: Provider) -> None:
    try:
        await asyncio.sleep(RETIRED_S)
    finally:
        await provider.close()
