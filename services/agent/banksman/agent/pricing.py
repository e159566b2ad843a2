"""What model requests cost: a table that operators can override."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from banksman.contracts.messages import Usage

_PER = 1_000_000
_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Price(BaseModel):
    """USD per million tokens of one model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of input tokens read from the vendor's cache; None when they cost as much as others."""
    written: float | None = Field(default=None, ge=0)
    """Of input tokens written to the vendor's cache; None when they cost as much as others."""
    written_1h: float | None = Field(default=None, ge=0)
    """Of those that the cache keeps for an hour; None when they cost as much as `written`."""


def _price(input: float, output: float, cached: float) -> Price:
    return Price(input=input, output=output, cached=cached)


def _claude(input: float, output: float, cached: float) -> Price:
    # https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching: writes cost 1.25 and 2 times input.
    return Price(input=input, output=output, cached=cached, written=input * 1.25, written_1h=input * 2)


PRICES: Mapping[str, Price] = {
    "anthropic:claude-haiku-4-5": _claude(1.00, 5.00, 0.10),
    "anthropic:claude-sonnet-4-5": _claude(3.00, 15.00, 0.30),
    "anthropic:claude-sonnet-4-6": _claude(3.00, 15.00, 0.30),
    "anthropic:claude-opus-4-5": _claude(5.00, 25.00, 0.50),
    "anthropic:claude-opus-4-6": _claude(5.00, 25.00, 0.50),
    "anthropic:claude-sonnet-5": _claude(2.00, 10.00, 0.20),
    "anthropic:claude-sonnet-5-5": _claude(2.00, 10.00, 0.10),
    "anthropic:claude-opus-5": _claude(5.00, 25.00, 0.50),
    "anthropic:claude-opus-5-5": _claude(4.00, 20.00, 0.20),
    "anthropic:claude-haiku-5-5": _claude(0.10, 0.50, 0.01),
    "openai:gpt-4.1": _price(2.00, 8.00, 0.50),
    "openai:gpt-4.1-mini": _price(0.40, 1.60, 0.10),
    "openai:gpt-4.1-nano": _price(0.10, 0.40, 0.025),
    "openai:gpt-4o": _price(2.50, 10.00, 1.25),
    "openai:gpt-4o-mini": _price(0.15, 0.60, 0.075),
    "openai:gpt-5": _price(1.25, 10.00, 0.125),
    "openai:gpt-5-mini": _price(0.25, 2.00, 0.025),
    "openai:gpt-5-nano": _price(0.05, 0.40, 0.005),
    "openai:gpt-5.1": _price(1.25, 10.00, 0.125),
    "openai:gpt-5.2": _price(1.75, 14.00, 0.175),
    "openai:gpt-6-sol": _price(2.00, 10.00, 0.20),
    "openai:gpt-6.1-sol": _price(2.00, 10.00, 0.10),
    "openai:gpt-6.2-sol": _price(2.00, 10.00, 0.10),
    "openai:gpt-6-luna": _price(0.10, 0.50, 0.01),
    "openai:o3": _price(2.00, 8.00, 0.50),
    "openai:o4-mini": _price(1.10, 4.40, 0.275),
    "demo:demo": _price(0.0, 0.0, 0.0),
}
"""List prices by `provider:model`, dated names without their date.

They are those of short prompts: what some models cost more beyond 100,000 or 272,000 tokens is not counted.
"""


def cost(model: str, usage: Usage, overrides: Mapping[str, Price] | None = None) -> float | None:
    """USD that a usage costs; None when the price of the model is unknown, which is not the same as free.

    Args:
        model: `provider:model`, or `demo`.
        usage: The tokens.
        overrides: The operator's prices, which replace and extend the table.
    """
    name = "demo:demo" if model == "demo" else model
    price = _look_up(name, overrides or {}) or _look_up(name, PRICES)
    if price is None:
        return None
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


def _look_up(model: str, prices: Mapping[str, Price]) -> Price | None:
    return prices.get(model) or prices.get(_DATE.sub("", model))
