"""Settings errors name the variable, its value and what is expected."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationError

from banksman.agent.settings import AgentSettings
from banksman.bus.settings import NatsSettings
from banksman.cli.operator.streams import OperatorSettings
from banksman.contracts.errors import BadInput
from banksman.gateway.settings import GatewaySettings
from banksman.runtime.search import SearchSettings
from banksman.runtime.settings import CONFIG_FILE_VARIABLE, Section, ServiceSettings, UnknownSetting, load


class Agent(Section):
    default_model: str = "demo"
    slots: int = Field(default=4, ge=1)
    api_key: SecretStr | None = Field(default=None, min_length=20)
    broker: str | None = Field(default=None, pattern="^nats:")


class Settings(ServiceSettings):
    agent: Agent = Agent()


class Searching(ServiceSettings):
    search: SearchSettings = SearchSettings()


@pytest.fixture(autouse=True)
def _without_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> BadInput:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput) as refused:
        load(Settings)
    assert refused.value.field == variable
    return refused.value


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        (
            "BANKSMAN_AGENT__MODEL",
            "Unknown setting BANKSMAN_AGENT__MODEL; did you mean BANKSMAN_AGENT__DEFAULT_MODEL?",
        ),
        ("BANKSMAN_AGENT__SLOT", "Unknown setting BANKSMAN_AGENT__SLOT; did you mean BANKSMAN_AGENT__SLOTS?"),
        ("BANKSMAN_AGNT__SLOTS", "Unknown setting BANKSMAN_AGNT__SLOTS; did you mean BANKSMAN_AGENT__SLOTS?"),
        ("BANKSMAN_DATADIR", "Unknown setting BANKSMAN_DATADIR; did you mean BANKSMAN_DATA_DIR?"),
        ("BANKSMAN_LOG_LEVEL", "Unknown setting BANKSMAN_LOG_LEVEL; did you mean BANKSMAN_LOG__LEVEL?"),
    ],
)
def test_unknown_setting_names_the_similar_one(
    monkeypatch: pytest.MonkeyPatch, variable: str, sentence: str
) -> None:
    refused = refusal(monkeypatch, variable, "1")
    assert isinstance(refused, UnknownSetting)
    assert str(refused) == sentence


def test_unknown_setting_without_a_similar_one_lists_the_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = str(refusal(monkeypatch, "BANKSMAN_XYZZY", "1"))
    assert sentence.startswith("Unknown setting BANKSMAN_XYZZY. The sections are agent, ")


def test_unknown_setting_of_a_section_lists_the_settings_of_the_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = refusal(monkeypatch, "BANKSMAN_LOG__XYZZY", "1")
    assert str(refused) == (
        "Unknown setting BANKSMAN_LOG__XYZZY. The settings of BANKSMAN_LOG are FORMAT, LEVEL."
    )


@pytest.mark.parametrize("url", ["http://broker:4222", "broker:4222", "nats://", "nats://:::", "[]"])
def test_a_url_that_cannot_name_a_nats_server_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BANKSMAN_NATS__URL", url)
    with pytest.raises(BadInput) as refused:
        load(OperatorSettings)
    assert "BANKSMAN_NATS__URL must be URLs such as nats://host:4222" in str(refused.value)


@pytest.mark.parametrize("url", ["tls://[::1]:4222", "nats://ann:pass@broker", '["nats://a:1","nats://b:2"]'])
def test_urls_of_nats_servers_are_accepted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BANKSMAN_NATS__URL", url)
    assert json.dumps(load(OperatorSettings).nats.url).replace(" ", "").strip('"') == url


def test_unknown_setting_of_a_file_names_the_similar_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[agent]\nmodel = 'demo'\n")
    monkeypatch.setenv(CONFIG_FILE_VARIABLE, str(file))
    with pytest.raises(UnknownSetting, match="did you mean BANKSMAN_AGENT__DEFAULT_MODEL"):
        load(Settings)


def test_missing_configuration_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = str(refusal(monkeypatch, CONFIG_FILE_VARIABLE, "/none.toml"))
    assert sentence == "BANKSMAN_CONFIG must be the path of an existing file, got '/none.toml'"


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("BANKSMAN_AGENT__SLOTS", "many", "BANKSMAN_AGENT__SLOTS must be an integer, got 'many'"),
        ("BANKSMAN_AGENT__SLOTS", "0", "BANKSMAN_AGENT__SLOTS must be at least 1, got '0'"),
        (
            "BANKSMAN_LOG__LEVEL",
            "loud",
            "BANKSMAN_LOG__LEVEL must be 'debug', 'info', 'warning' or 'error', got 'loud'",
        ),
    ],
)
def test_invalid_value_is_named_with_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    assert str(refusal(monkeypatch, variable, value)) == sentence


@pytest.mark.parametrize("section", [GatewaySettings, AgentSettings, NatsSettings])
@pytest.mark.parametrize("value", ["1e400", "inf", "nan"])
def test_no_setting_is_infinite(section: type[BaseModel], value: str) -> None:
    """An endless wait is a missing setting, and an infinite one ends in an error of its first use."""
    floats = {"drain_s", "connect_timeout_s"} & section.model_fields.keys()
    for name in floats:
        with pytest.raises(ValidationError, match="finite number"):
            section.model_validate({name: value})
    assert floats


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BANKSMAN_AGENT__API_KEY", "hunter2"),
        ("BANKSMAN_AGENT__BROKER", "http://user:hunter2@host"),
    ],
)
def test_value_that_may_hold_a_secret_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert "hunter2" not in str(refusal(monkeypatch, variable, value))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BANKSMAN_LOG", "text"),
        ("BANKSMAN_LOG", '{"level": '),
        ("BANKSMAN_AGENT", '{"slots": 1,}'),
    ],
)
def test_malformed_json_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    assert re.match(rf"{variable}(:| must)", str(refusal(monkeypatch, variable, value)))


@pytest.mark.parametrize("content", [b"[log\nlevel = 1", b"\xff\xfe", b"[log]\n[log]\n"])
def test_a_file_that_is_not_toml_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    file = tmp_path / "banksman.toml"
    file.write_bytes(content)

    sentence = str(refusal(monkeypatch, CONFIG_FILE_VARIABLE, str(file)))

    assert f"{CONFIG_FILE_VARIABLE} must be a TOML file: " in sentence


@pytest.mark.parametrize(
    ("variables", "tenant", "expected"),
    [
        ({}, "acme", None),
        ({"DEFAULT": '{"provider": "searxng", "url": "https://s.example/search"}'}, "acme", "searxng"),
        ({"DEFAULT__PROVIDER": "brave", "DEFAULT__SECRET": "BRAVE_KEY"}, "acme", "brave"),
        ({"DEFAULT__PROVIDER": "brave", "DEFAULT__KEY": "k" * 20, "NAMED": '{"acme": null}'}, "acme", None),
        ({"NAMED": '{"acme": {"provider": "tavily", "secret": "KEY"}}'}, "acme", "tavily"),
        ({"NAMED": '{"acme": {"provider": "tavily", "secret": "KEY"}}'}, "other", None),
    ],
)
def test_each_tenant_has_its_search_provider_or_the_default(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], tenant: str, expected: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"BANKSMAN_SEARCH__{name}", value)
    provider = load(Searching).search.of(tenant)
    assert (provider and provider.provider) == expected


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ({"provider": "searxng"}, "searxng needs url"),
        ({"provider": "brave"}, "brave needs either key or secret"),
        ({"provider": "tavily", "key": "k" * 20, "secret": "KEY"}, "tavily needs either key or secret"),
        ({"provider": "brave", "secret": "KEY", "url": "ftp://x"}, "URL"),
    ],
)
def test_an_incomplete_search_provider_is_refused(
    monkeypatch: pytest.MonkeyPatch, provider: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("BANKSMAN_SEARCH__DEFAULT", json.dumps(provider))
    with pytest.raises(BadInput, match=expected):
        load(Searching)
