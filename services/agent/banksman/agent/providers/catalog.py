"""The providers of this process, by name."""

from __future__ import annotations

import asyncio

from banksman.agent.providers.anthropic import Anthropic
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.openai import OpenAI
from banksman.contracts.assistants import PROVIDERS
from banksman.contracts.errors import BadInput
from banksman.runs.pricing import load_prices

DEMO_MODEL = "demo"
"""The model of the model server. The name without a provider means `demo:demo`."""


class Providers:
    """Creates each provider on first use and reuses it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._created: dict[str, Provider] = {}

    def choose(self, model: str) -> tuple[Provider, str]:
        """Return a model's provider and the vendor's name of it; raise `BadInput` for an unknown provider."""
        provider, _, name = (DEMO_MODEL, "", DEMO_MODEL) if model == DEMO_MODEL else model.partition(":")
        if provider not in self.names or not name:
            raise BadInput("model", model, f"provider:model with a provider of {', '.join(self.names)}")
        if provider not in self._created:
            self._created[provider] = self._create(provider)
        return self._created[provider], name

    @property
    def names(self) -> tuple[str, ...]:
        """The providers that this process can use: the demo model needs a server."""
        return tuple(
            one for one in PROVIDERS if one != DEMO_MODEL or self._settings.demo_base_url is not None
        )

    async def warm(self, model: str) -> None:
        """Import the library and the price list that the first request needs, off the event loop."""
        provider, _ = self.choose(model)
        await asyncio.to_thread(provider.warm)
        await asyncio.to_thread(load_prices, model)

    async def close(self) -> None:
        for provider in self._created.values():
            await provider.close()
        self._created.clear()

    def _create(self, provider: str) -> Provider:
        settings = self._settings
        key = settings.openai_api_key
        match provider:
            case "anthropic":
                return Anthropic(settings)
            case "openai":
                secret = key.get_secret_value() if key else None
                return OpenAI("openai", settings, base_url=settings.openai_base_url, api_key=secret)
            case "backboard":
                from banksman.agent.providers.backboard import Backboard

                return Backboard(settings)
            case _:
                return OpenAI(DEMO_MODEL, settings, base_url=settings.demo_base_url or "", api_key=None)
