"""The default model."""

from __future__ import annotations

import pytest

from banksman.cli.models import ModelChoice
from tests.support.system import scripted_model


def test_default_model_of_a_compatible_server_is_the_first_it_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`OPENAI_API_KEY` and `OPENAI_BASE_URL` suffice to use a real server."""
    with scripted_model() as server:
        monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_API_KEY", "any")
        monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_BASE_URL", f"{server.url}/v1")
        assert ModelChoice().default_model == "openai:demo"


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({}, "demo"),
        ({"ANTHROPIC_API_KEY": "any"}, "anthropic:claude-"),
        ({"OPENAI_API_KEY": "any"}, "openai:gpt-"),
        ({"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": "https://api.openai.com/v1"}, "openai:gpt-"),
    ],
)
def test_vendor_keys_determine_the_default_model(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], model: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BANKSMAN_MODELS__{name}", value)
    assert ModelChoice().default_model.startswith(model)
