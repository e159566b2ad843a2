"""Which model answers when nobody names one, and where the keys come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from urllib.request import Request, urlopen

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from banksman.contracts.errors import BadInput
from banksman.runtime.settings import ServiceSettings, load

DEMO_MODEL = "demo"
LIST_TIMEOUT_S = 5.0
"""Seconds that an OpenAI-compatible server gets to list its models."""
DEFAULT_MODEL_VARIABLES = ("BANKSMAN_GATEWAY__DEFAULT_MODEL", "BANKSMAN_AGENT__DEFAULT_MODEL")
"""The gateway chooses it where nobody names one; agents do the work of its first request ahead of it."""

_ANTHROPIC_MODEL = "anthropic:claude-sonnet-5-5"
_OPENAI_MODEL = "openai:gpt-5-mini"
"""It takes tools over Chat Completions; newer ones are reported to want the Responses API for that."""
_OPENAI_URL = "https://api.openai.com/"

VENDOR_VARIABLES: Mapping[str, str] = {
    "ANTHROPIC_API_KEY": "BANKSMAN_MODELS__ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL": "BANKSMAN_MODELS__ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY": "BANKSMAN_MODELS__OPENAI_API_KEY",
    "OPENAI_BASE_URL": "BANKSMAN_MODELS__OPENAI_BASE_URL",
    "BACKBOARD_API_KEY": "BANKSMAN_MODELS__BACKBOARD_API_KEY",
}
"""The names that the vendors' own tools read, and ours."""


class _Agent(BaseModel):
    """Section `agent`, as far as it matters here."""

    model_config = ConfigDict(frozen=True)

    default_model: str | None = None


class _Gateway(BaseModel):
    """Section `gateway`, as far as it matters here."""

    model_config = ConfigDict(frozen=True)

    default_model: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0 takes a free one."""


class _Keys(BaseModel):
    """Section `models`, as far as it matters here."""

    model_config = ConfigDict(frozen=True)

    anthropic_api_key: SecretStr | None = None
    openai_api_key: SecretStr | None = None
    openai_base_url: str | None = None


class ModelChoice(ServiceSettings):
    """What decides which model answers."""

    gateway: _Gateway = _Gateway()
    agent: _Agent = _Agent()
    models: _Keys = _Keys()

    @property
    def default_model(self) -> str:
        """`provider:model`, or `demo` when no key is set.

        Of an OpenAI-compatible server that is no one's default it is the first model that the server lists.

        Raises:
            BadInput: that server lists none, and no model is set.
        """
        if chosen := self.gateway.default_model or self.agent.default_model:
            return chosen
        if self.models.anthropic_api_key:
            return _ANTHROPIC_MODEL
        if self.models.openai_base_url and not self.models.openai_base_url.startswith(_OPENAI_URL):
            return f"openai:{_first_model(self.models.openai_base_url, self.models.openai_api_key)}"
        return _OPENAI_MODEL if self.models.openai_api_key else DEMO_MODEL

    @property
    def demo(self) -> bool:
        """Whether the built-in demo model answers."""
        return self.default_model.partition(":")[0] == DEMO_MODEL


@lru_cache(maxsize=8)
def _first_model(base_url: str, key: SecretStr | None) -> str:
    """The first model that an OpenAI-compatible server lists.

    Raises:
        BadInput: it does not answer within `LIST_TIMEOUT_S`, or lists none.
    """
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    request = Request(f"{base_url.rstrip('/')}/models", headers=headers)
    expected = f"openai:NAME, a model of the server at OPENAI_BASE_URL ({base_url} lists none)"
    try:
        with urlopen(request, timeout=LIST_TIMEOUT_S) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadInput(DEFAULT_MODEL_VARIABLES[0], None, expected) from error


def adopt_vendor_names(environment: MutableMapping[str, str]) -> None:
    """Set our variables from the vendors' names, where ours are not set; an empty one counts as not set."""
    for theirs, ours in VENDOR_VARIABLES.items():
        if environment.get(theirs) and ours not in environment:
            environment[ours] = environment[theirs]


def adopt_default_model(environment: MutableMapping[str, str]) -> None:
    """Set the default model for a service that is started alone.

    Raises:
        BadInput: a setting is wrong.
    """
    environment.update(dict.fromkeys(DEFAULT_MODEL_VARIABLES, load(ModelChoice).default_model))
