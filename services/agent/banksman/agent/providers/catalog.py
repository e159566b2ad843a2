"""The providers of this process, by name."""

from __future__ import annotations

import asyncio
from typing import assert_never

from banksman.agent.providers.anthropic import Anthropic
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.library import Library
from banksman.agent.providers.openai import OpenAI
from banksman.contracts.errors import BadInput
from banksman.runs.pricing import load_prices

DEMO_MODEL = "demo"
"""The model of the model server. The name without a provider means `demo:demo`."""


class Providers:
    """Creates each provider on first use and reuses it."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._names = tuple(settings.entries)
        self._created: dict[str, Provider] = {}

    def choose(self, model: str) -> tuple[Provider, str]:
        """Return a model's provider and the vendor's name of it; raise `BadInput` for an unknown provider."""
        provider, _, name = (DEMO_MODEL, "", DEMO_MODEL) if model == DEMO_MODEL else model.partition(":")
        if provider not in self._names or not name:
            raise BadInput("model", model, f"provider:model with a provider of {', '.join(self._names)}")
        if provider not in self._created:
            self._created[provider] = self._create(provider)
        return self._created[provider], name

    @property
    def max_wait_s(self) -> float:
        """Seconds for which a request is repeated while no model accepts it."""
        return self._settings.max_wait_s

    def context_tokens(self, model: str) -> int | None:
        """Return the context size that the server of `provider:model` told; None if it told none so far."""
        provider, name = self.choose(model)
        return provider.facts(name).context_tokens

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
        settings, entry = self._settings, self._settings.entries[provider]
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
