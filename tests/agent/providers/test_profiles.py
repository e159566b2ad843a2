"""Profiles: which differences apply to a model, and an operator's file of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from banksman.agent.providers.profiles import profile_of
from banksman.agent.settings import AgentServiceSettings
from banksman.contracts.errors import BadInput
from banksman.runtime.settings import load

HERE = "http://127.0.0.1:9/v1"


def test_the_vendor_is_found_by_the_host_or_named_by_the_entry() -> None:
    assert profile_of("https://api.mistral.ai/v1", "m").call_id.pattern == "[a-zA-Z0-9]{9}"
    assert profile_of(HERE, "m", "mistral") == profile_of("https://api.mistral.ai/v1", "m")
    assert profile_of("https://api.mistral.ai.example/v1", "m") == profile_of(HERE, "m")


def test_an_operators_file_adds_vendors_and_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(
        '[vendors]\nmistral = ["127.0.0.1:9"]\n'
        '[[entries]]\nvendors = ["mistral"]\nmodels = ["old-*"]\nprofile = { stream_usage = true }\n'
    )

    assert profile_of(HERE, "new", file=file) == profile_of(HERE, "new", "mistral")
    assert profile_of(HERE, "OLD-1", file=file).stream_usage is True
    assert profile_of(HERE, "OLD-1", file=file).user_after_tool is False


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[entries]]\nprofile = { stream_usag = true }", "stream_usag"),
        ('[[entries]]\nprofile = { system_role = "boss" }', "system_role"),
        ('[[entries]]\nmodel = ["x"]\nprofile = {}', "model"),
        ('[[entries]]\nprofile = { call_id = "[" }', "call_id must be a regular expression"),
        ("[[entries", "TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(text)
    monkeypatch.setenv("BANKSMAN_MODELS__PROFILES_FILE", str(file))

    with pytest.raises(BadInput, match=problem) as raised:
        load(AgentServiceSettings)

    assert "BANKSMAN_MODELS__PROFILES_FILE" in str(raised.value)
