"""The default model."""

from __future__ import annotations

import json

import pytest

from banksman.cli.machine import free_port
from banksman.cli.settings import (
    DEFAULT_MODEL_VARIABLES,
    ModelChoice,
    adopt_default_model,
)
from banksman.contracts.errors import BadInput
from banksman.runtime.settings import load
from tests.support.system import scripted_model


def test_default_model_of_a_compatible_server_is_the_first_it_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`OPENAI_API_KEY` and `OPENAI_BASE_URL` suffice to use a real server."""
    with scripted_model() as server:
        monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_API_KEY", "any")
        monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_BASE_URL", f"{server.url}/v1")
        assert ModelChoice().default_model == "openai:demo"


def test_a_named_server_determines_the_default_model_unless_a_vendor_has_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_model() as server:
        named = {"mine": {"base_url": f"{server.url}/v1"}}
        monkeypatch.setenv("BANKSMAN_MODELS__PROVIDERS", json.dumps(named))
        assert ModelChoice().default_model == "mine:demo"
    monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_API_KEY", "any")
    assert ModelChoice().default_model.startswith("openai:gpt-")


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


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({"MODELS__DEFAULT": "openai:mine"}, "openai:mine"),
        ({"MODELS__ANTHROPIC_API_KEY": "any", "MODELS__DEFAULT": "demo"}, "demo"),
    ],
)
def test_one_setting_determines_the_default_model_of_gateway_and_agents(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], model: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BANKSMAN_{name}", value)
    environment: dict[str, str] = {}

    adopt_default_model(environment)

    assert environment == dict.fromkeys(DEFAULT_MODEL_VARIABLES, model)


def test_up_names_the_models_of_a_server_that_does_not_list_the_configured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_model() as server:
        monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("BANKSMAN_MODELS__DEFAULT", "openai:llama3.2")
        (missing,) = ModelChoice().notices
        monkeypatch.setenv("BANKSMAN_MODELS__DEFAULT", "openai:demo")
        listed = ModelChoice().notices
    monkeypatch.setenv("BANKSMAN_MODELS__OPENAI_BASE_URL", f"http://127.0.0.1:{free_port()}/v1")
    (unreachable,) = ModelChoice().notices

    assert missing.startswith(f"{server.url}/v1 does not list llama3.2. It lists: demo")
    assert listed == ()
    assert "lists no models" in unreachable


def test_a_default_model_without_its_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANKSMAN_MODELS__DEFAULT", "llama3.2")
    with pytest.raises(BadInput, match="BANKSMAN_MODELS__DEFAULT"):
        load(ModelChoice)
