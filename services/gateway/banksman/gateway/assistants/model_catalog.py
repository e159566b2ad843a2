"""The models that a run can use: their names, and the provider, price and context to choose them by."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from banksman.contracts.errors import BadInput
from banksman.contracts.messages import Usage
from banksman.contracts.wire import Stored
from banksman.runs.pricing import Price, context_window, cost

PROVIDERS = ("anthropic", "openai", "backboard", "demo")
MAX_MODELS = 500
SAMPLE_TOKENS = 1_000
"""Tokens for which prices are calculated: few, so that no long-context price applies."""
_NOT_FOR_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|image|audio|realtime|moderation|transcribe|davinci|babbage|sora", re.IGNORECASE
)
"""Patterns of model names that vendors list although the models do not chat."""


class ModelView(Stored):
    """A model that a run can use."""

    id: str
    """`provider:model`."""
    provider: str
    name: str
    context_tokens: int | None
    """Maximum input tokens of one request; None if unknown."""
    input_usd: float | None
    """USD per million input tokens; None if the price is unknown, which does not mean free."""
    output_usd: float | None
    default: bool
    """Whether it is the model of runs that name none."""


def model_name(name: str | None) -> str:
    """Return the full name of a model, `provider:model`; `demo` is short for `demo:demo`.

    Raises:
        BadInput: The name is missing, or has no known provider.
    """
    if name is None:
        raise BadInput(
            "model", None, "a model: neither a provider key nor BANKSMAN_GATEWAY__DEFAULT_MODEL is set"
        )
    if name == "demo":
        return "demo:demo"
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in PROVIDERS:
        raise BadInput("model", name, f"provider:model, the provider one of {', '.join(PROVIDERS)}")
    return name


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """Describes models."""

    default_model: str | None
    prices: Mapping[str, Price]
    """The operator's prices by `provider:model`."""

    async def describe(self, listed: Iterable[tuple[str, str]]) -> list[ModelView]:
        """Return the models by provider and name, the default one first; at most 500.

        Args:
            listed: Provider and name of each model.
        """
        names = {
            f"{provider}:{name}"
            for provider, name in listed
            if provider in PROVIDERS and not _NOT_FOR_CHAT.search(name)
        }
        names |= {self._default} if self._default else set()
        chosen = sorted(names, key=lambda name: (name != self._default, name))[:MAX_MODELS]
        # The first look-up imports the price list: 0.44 s and 10 MiB, which no other request needs.
        return await asyncio.to_thread(lambda: [self._view(name) for name in chosen])

    def _view(self, model: str) -> ModelView:
        provider, _, name = model.partition(":")
        return ModelView(
            id=model,
            provider=provider,
            name=name,
            context_tokens=context_window(model),
            input_usd=self._per_million(model, Usage(input_tokens=SAMPLE_TOKENS)),
            output_usd=self._per_million(model, Usage(output_tokens=SAMPLE_TOKENS)),
            default=model == self._default,
        )

    @property
    def _default(self) -> str | None:
        """The full name of the default model. A setting may name the demo model without its provider."""
        return "demo:demo" if self.default_model == "demo" else self.default_model

    def _per_million(self, model: str, usage: Usage) -> float | None:
        price = cost(model, usage, self.prices)
        return None if price is None else round(price * 1_000_000 / SAMPLE_TOKENS, 6)
