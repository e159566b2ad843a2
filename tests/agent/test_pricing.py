from __future__ import annotations

import pytest

from banksman.agent.pricing import Price, cost
from banksman.agent.settings import AgentServiceSettings
from banksman.cli.models import ModelChoice
from banksman.contracts.messages import Usage
from banksman.runtime.settings import load

USAGE = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)


def test_cached_tokens_have_their_own_price() -> None:
    assert cost("anthropic:claude-sonnet-4-5", USAGE) == pytest.approx(0.6 * 3 + 0.4 * 0.3 + 0.1 * 15)


def test_what_a_vendor_writes_to_its_cache_costs_more_and_for_an_hour_more_still() -> None:
    usage = Usage(input_tokens=1_000_000, cache_written_tokens=600_000, cache_written_1h_tokens=100_000)

    assert cost("anthropic:claude-sonnet-4-5", usage) == pytest.approx(0.4 * 3 + 0.5 * 3.75 + 0.1 * 6)
    assert cost("openai:gpt-4o", usage) == pytest.approx(2.5)
    own = {"anthropic:claude-sonnet-4-5": Price(input=3, output=15, written=4)}
    assert cost("anthropic:claude-sonnet-4-5", usage, own) == pytest.approx(0.4 * 3 + 0.6 * 4)


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


def test_the_models_that_answer_by_default_have_a_price() -> None:
    """Else `max_cost_usd` would bound nothing on a fresh machine with a key."""
    for key in ("anthropic_api_key", "openai_api_key"):
        choice = ModelChoice.model_validate({"models": {key: "sk"}})
        assert cost(choice.default_model, USAGE) is not None


def test_an_operators_prices_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANKSMAN_AGENT__PRICES", '{"backboard:openai/gpt-4o": {"input": 3, "output": 12}}')

    prices = load(AgentServiceSettings).agent.prices

    assert cost("backboard:openai/gpt-4o", USAGE) is None
    assert cost("backboard:openai/gpt-4o", USAGE, prices) == pytest.approx(3 + 0.1 * 12)
