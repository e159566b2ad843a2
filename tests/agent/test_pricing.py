from __future__ import annotations

import pytest

from banksman.agent.pricing import Price, cost
from banksman.contracts.messages import Usage

USAGE = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)


def test_cached_tokens_have_their_own_price() -> None:
    assert cost("anthropic:claude-sonnet-4-5", USAGE) == pytest.approx(0.6 * 3 + 0.4 * 0.3 + 0.1 * 15)


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-latest"])
def test_dated_names_cost_what_the_model_costs(name: str) -> None:
    assert cost(f"openai:{name}", Usage(output_tokens=1_000_000)) == pytest.approx(10)


def test_an_unknown_price_is_not_zero() -> None:
    assert cost("openai:some-other-model", USAGE) is None


def test_the_demo_model_is_free() -> None:
    assert cost("demo", USAGE) == cost("demo:demo", USAGE) == 0


def test_an_operators_price_replaces_and_extends_the_table() -> None:
    prices = {"openai:gpt-4o": Price(input=1, output=1), "openai:local": Price(input=0, output=0)}

    assert cost("openai:gpt-4o", USAGE, prices) == pytest.approx(1.1)
    assert cost("openai:local", USAGE, prices) == 0
