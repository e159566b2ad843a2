"""The cost of model requests: list prices of `genai-prices`, which operators can override.

The list is the library's bundled data, so a price needs no network access. The library's background
updater (`UpdatePrices`) is never started: an operator's cost limits change only with an upgrade or a setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from banksman.contracts.messages import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_PER = 1_000_000
_SUFFIX = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_LISTED_PROVIDERS = frozenset({"anthropic", "openai"})
"""Providers that the library lists under the same model names; it does not list Backboard's prices."""


class Price(BaseModel):
    """The prices of one model in USD per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Price of input tokens read from the vendor's cache; None applies `input`."""
    written: float | None = Field(default=None, ge=0)
    """Price of input tokens written to the vendor's cache; None applies `input`."""
    written_1h: float | None = Field(default=None, ge=0)
    """Price of cache writes that are stored for an hour; None applies `written`."""


_UNLISTED: Mapping[str, Price] = {
    "demo:demo": Price(input=0, output=0),
    "openai:gpt-6.2-sol": Price(input=2, output=10, cached=0.1),
}
"""Prices of models that the library does not list. Remove an entry once a release of the library lists it."""


def cost(model: str, usage: Usage, overrides: Mapping[str, Price] | None = None) -> float | None:
    """Return the cost of one request in USD; None if the model's price is unknown, which does not mean free.

    `model` is `provider:model` or `demo`. Long-context prices depend on the request's input tokens: pass no
    sums.
    """
    name = "demo:demo" if model == "demo" else model
    if own := _without_suffix(name, overrides or {}) or _without_suffix(name, _UNLISTED):
        return _own_cost(own, _consistent(usage))
    return _listed_cost(name, usage)


def context_window(model: str) -> int | None:
    found = _listed("demo:demo" if model == "demo" else model)
    return None if found is None else found[1].context_window


def load_prices(model: str) -> None:
    """Load the price list if `model` needs it. This blocks for some 0.1 s, so call it off the event loop."""
    _listed(model)


def _without_suffix(model: str, prices: Mapping[str, Price]) -> Price | None:
    return prices.get(model) or prices.get(_SUFFIX.sub("", model))


def _consistent(usage: Usage) -> Usage:
    """Limit each part to its total. Compatible servers report larger parts, which the library refuses."""
    tokens = max(0, usage.input_tokens)
    cached = min(max(0, usage.cached_tokens), tokens)
    written = min(max(0, usage.cache_written_tokens), tokens - cached)
    return Usage(
        input_tokens=tokens,
        output_tokens=max(0, usage.output_tokens),
        cached_tokens=cached,
        cache_written_tokens=written,
        cache_written_1h_tokens=min(max(0, usage.cache_written_1h_tokens), written),
    )


def _own_cost(price: Price, usage: Usage) -> float:
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.written is None else price.written
    written_1h = written if price.written_1h is None else price.written_1h
    for_an_hour = usage.cache_written_1h_tokens
    fresh = usage.input_tokens - usage.cached_tokens - usage.cache_written_tokens
    return (
        fresh * price.input
        + usage.cached_tokens * cached
        + (usage.cache_written_tokens - for_an_hour) * written
        + for_an_hour * written_1h
        + usage.output_tokens * price.output
    ) / _PER


def _listed_cost(model: str, usage: Usage) -> float | None:
    found = _listed(model)
    if found is None:
        return None
    from genai_prices import Usage as ListedUsage

    vendor, listed = found
    usage = _consistent(usage)
    tokens = ListedUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_written_tokens,
        cache_write_1h_tokens=usage.cache_written_1h_tokens,
    )
    return float(listed.calc_price(tokens, vendor).total_price)


@lru_cache(maxsize=1_000)
def _listed(model: str) -> tuple[Provider, ModelInfo] | None:
    """Find a model. The cache is bounded, unlike the library's own, because users choose the names."""
    provider, _, name = model.partition(":")
    if provider not in _LISTED_PROVIDERS:
        return None
    # Imported on first use: the import takes 0.1 s and 4 MB after a vendor's SDK, 0.5 s and 20 MB without
    # one.
    from genai_prices import data_snapshot

    vendor = data_snapshot.get_snapshot().find_provider(None, provider, None)
    listed = vendor.find_model(name) or vendor.find_model(_SUFFIX.sub("", name))
    return None if listed is None else (vendor, listed)
