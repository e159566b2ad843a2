"""The providers of this process, by the names that models are chosen with."""

from __future__ import annotations

import asyncio

from banksman.agent.pricing import load_prices
from banksman.agent.providers.anthropic import Anthropic
from banksman.agent.providers.backboard import Backboard
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.openai import OpenAI
from banksman.contracts.errors import BadInput

DEMO_MODEL = "demo"
"""The model server's own model; alone it stands for `demo:demo`."""


class Providers:
    """Makes each provider when it is first asked for, and keeps it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._made: dict[str, Provider] = {}

    def choose(self, model: str) -> tuple[Provider, str]:
        """The provider of `provider:model`, and the vendor's name of the model.

        Raises:
            BadInput: when the name has another form or names a provider that is not configured.
        """
        provider, _, name = (DEMO_MODEL, "", DEMO_MODEL) if model == DEMO_MODEL else model.partition(":")
        if provider not in self.names or not name:
            raise BadInput("model", model, f"provider:model, the provider one of {', '.join(self.names)}")
        if provider not in self._made:
            self._made[provider] = self._make(provider)
        return self._made[provider], name

    @property
    def names(self) -> tuple[str, ...]:
        """The providers that can be chosen."""
        demo = () if self._settings.demo_base_url is None else (DEMO_MODEL,)
        return ("anthropic", "openai", "backboard", *demo)

    async def warm(self, model: str) -> None:
        """Do the work of the first request to `model` ahead of it, off the event loop.

        Raises:
            BadInput: as `choose`.
        """
        provider, _ = self.choose(model)
        await asyncio.to_thread(provider.warm)
        await asyncio.to_thread(load_prices, model)

    async def close(self) -> None:
        """Close the connections of all providers."""
        for provider in self._made.values():
            await provider.close()
        self._made.clear()

    def _make(self, provider: str) -> Provider:
        settings = self._settings
        key = settings.openai_api_key
        match provider:
            case "anthropic":
                return Anthropic(settings)
            case "openai":
                secret = key.get_secret_value() if key else None
                return OpenAI("openai", settings, base_url=settings.openai_base_url, api_key=secret)
            case "backboard":
                return Backboard(settings)
            case _:
                return OpenAI(DEMO_MODEL, settings, base_url=settings.demo_base_url or "", api_key=None)
