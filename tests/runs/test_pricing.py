from __future__ import annotations

import threading

import pytest

from banksman.agent.settings import AgentServiceSettings
from banksman.cli.settings import ModelChoice
from banksman.contracts.messages import Usage
from banksman.runs.pricing import Price, cost, load_prices
from banksman.runtime.settings import load

USAGE = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)


def test_cached_tokens_have_their_own_price() -> None:
    assert cost("anthropic:claude-opus-4-5", USAGE) == pytest.approx(0.6 * 5 + 0.4 * 0.5 + 0.1 * 25)


def test_cache_writes_cost_more_and_one_hour_writes_cost_most() -> None:
    usage = Usage(input_tokens=1_000_000, cache_written_tokens=600_000, cache_written_1h_tokens=100_000)

    assert cost("anthropic:claude-opus-4-5", usage) == pytest.approx(0.4 * 5 + 0.5 * 6.25 + 0.1 * 10)
    assert cost("openai:gpt-4o", usage) == pytest.approx(2.5)
    own = {"anthropic:claude-opus-4-5": Price(input=3, output=15, written=4)}
    assert cost("anthropic:claude-opus-4-5", usage, own) == pytest.approx(0.4 * 3 + 0.6 * 4)


def test_long_prompt_costs_the_long_context_price() -> None:
    short = Usage(input_tokens=200_000, output_tokens=10_000, cached_tokens=50_000)
    long = Usage(input_tokens=200_001, output_tokens=10_000, cached_tokens=50_000)

    assert cost("anthropic:claude-sonnet-4-5", short) == pytest.approx(0.15 * 3 + 0.05 * 0.3 + 0.01 * 15)
    assert cost("anthropic:claude-sonnet-4-5", long) == pytest.approx(0.150001 * 6 + 0.05 * 0.6 + 0.01 * 22.5)


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-latest"])
def test_dated_model_name_has_the_price_of_the_model(name: str) -> None:
    assert cost(f"openai:{name}", Usage(output_tokens=1_000_000)) == pytest.approx(10)


@pytest.mark.parametrize(
    "model", ["openai:some-other-model", "anthropic:claude-x", "backboard:openai/gpt-4o", "nonsense", ""]
)
def test_unknown_model_has_no_cost_rather_than_zero(model: str) -> None:
    assert cost(model, USAGE) is None


def test_demo_model_is_free() -> None:
    assert cost("demo", USAGE) == cost("demo:demo", USAGE) == 0


def test_model_that_the_library_does_not_list_has_our_price() -> None:
    assert cost("openai:gpt-6.2-sol", USAGE) == pytest.approx(0.6 * 2 + 0.4 * 0.1 + 0.1 * 10)


def test_operator_price_replaces_and_extends_the_list() -> None:
    prices = {"openai:gpt-4o": Price(input=1, output=1), "openai:local": Price(input=0, output=0)}

    assert cost("openai:gpt-4o", USAGE, prices) == pytest.approx(1.1)
    assert cost("openai:local", USAGE, prices) == 0


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=100_000, cached_tokens=900_000),
        Usage(input_tokens=100_000, cached_tokens=60_000, cache_written_tokens=60_000),
        Usage(input_tokens=100_000, cache_written_tokens=1_000, cache_written_1h_tokens=2_000),
        Usage(input_tokens=-1, output_tokens=-1),
    ],
)
def test_inconsistent_token_counts_have_a_bounded_cost(usage: Usage) -> None:
    for prices in ({}, {"anthropic:claude-sonnet-4-5": Price(input=3, output=15, written=3.75, cached=0.3)}):
        price = cost("anthropic:claude-sonnet-4-5", usage, prices)

        assert price is not None
        assert 0 <= price <= 0.1 * 6


def test_prices_start_no_background_updater() -> None:
    before = threading.enumerate()

    load_prices("anthropic:claude-sonnet-4-5")
    cost("anthropic:claude-sonnet-4-5", USAGE)

    assert threading.enumerate() == before


def test_default_models_have_a_price() -> None:
    """Otherwise `max_cost_usd` would bound nothing on a fresh machine with a key."""
    for key in ("anthropic_api_key", "openai_api_key"):
        choice = ModelChoice.model_validate({"models": {key: "sk"}})
        assert cost(choice.default_model, USAGE) is not None


def test_operator_prices_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANKSMAN_AGENT__PRICES", '{"backboard:openai/gpt-4o": {"input": 3, "output": 12}}')

    prices = load(AgentServiceSettings).agent.prices

    assert cost("backboard:openai/gpt-4o", USAGE) is None
    assert cost("backboard:openai/gpt-4o", USAGE, prices) == pytest.approx(3 + 0.1 * 12)
