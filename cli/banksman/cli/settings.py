"""Settings of `banksman up`, the default model, and the variables that hold the vendors' keys."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path
from urllib.request import Request, urlopen

from pydantic import BaseModel, ConfigDict, Field

from banksman.contracts.errors import BadInput
from banksman.runtime.model_servers import MAX_LIST_BYTES, ModelServers, ProviderEntry, listed_models
from banksman.runtime.settings import Section, ServiceSettings, load

DEMO_MODEL = "demo"
DEPLOYED_STORAGE_BYTES = 20 * 1024**3
"""Bytes for all streams of a deployment that sets none."""
LEAST_STORAGE_BYTES = 64 * 1024**2
LIST_TIMEOUT_S = 5.0
"""Seconds within which an OpenAI-compatible server must list its models."""
MAX_LISTED = 20
DEFAULT_MODEL = "BANKSMAN_MODELS__DEFAULT"
DEFAULT_MODEL_VARIABLES = ("BANKSMAN_GATEWAY__DEFAULT_MODEL", "BANKSMAN_AGENT__DEFAULT_MODEL")
"""The default model of the gateway, for requests that name none, and of agents, which create its client in
advance. Both are derived from `DEFAULT_MODEL`."""

_ANTHROPIC_MODEL = "anthropic:claude-sonnet-5-5"
_OPENAI_MODEL = "openai:gpt-5-mini"
"""This model accepts tools over Chat Completions; newer ones reportedly need the Responses API for tools."""
_OPENAI_URL = "https://api.openai.com/"
_NO_LIST = (OSError, ValueError, LookupError)
"""Exceptions of a request to a server that does not respond, or whose response is not a list of models."""

VENDOR_VARIABLES: Mapping[str, str] = {
    "ANTHROPIC_API_KEY": "BANKSMAN_MODELS__ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL": "BANKSMAN_MODELS__ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY": "BANKSMAN_MODELS__OPENAI_API_KEY",
    "OPENAI_BASE_URL": "BANKSMAN_MODELS__OPENAI_BASE_URL",
    "BACKBOARD_API_KEY": "BANKSMAN_MODELS__BACKBOARD_API_KEY",
}


class _Models(ModelServers):
    default: str | None = Field(default=None, pattern=r"^(demo|[a-z][a-z0-9_-]*:.+)$", max_length=200)
    """`provider:model` of conversations that name none; None for a model of the first vendor with a key."""


class ModelChoice(ServiceSettings):
    models: _Models = _Models()

    @property
    def default_model(self) -> str:
        """The default model as `provider:model`, or `demo` when no key is set.

        For an OpenAI-compatible server other than OpenAI's, the first model that the server lists. Vendors
        with a key take precedence over the servers of `models.providers`.

        Raises:
            BadInput: no model is set, and that server lists none.
        """
        if self.models.default:
            return self.models.default
        if self.models.anthropic_api_key:
            return _ANTHROPIC_MODEL
        servers = self._compatible_servers
        if self.models.openai_api_key and "openai" not in servers:
            return _OPENAI_MODEL
        for name, entry in servers.items():
            return f"{name}:{_first_model(name, entry)}"
        return DEMO_MODEL

    @property
    def notices(self) -> tuple[str, ...]:
        missing = self._missing_model()
        return (missing,) if missing else ()

    def _missing_model(self) -> str | None:
        provider, _, name = self.default_model.partition(":")
        entry = self._compatible_servers.get(provider)
        if entry is None:
            return None
        url = entry.base_url
        try:
            listed = _listed_models(url, entry.key)
        except _NO_LIST as error:
            return f"{url} lists no models ({error}); requests to {name} fail until it does."
        # Ollama lists a model with its tag and finds it without.
        if name in listed or f"{name}:latest" in listed:
            return None
        return f"{url} does not list {name}. It lists: {', '.join(listed[:MAX_LISTED]) or 'none'}."

    @property
    def _compatible_servers(self) -> dict[str, ProviderEntry]:
        """The servers of the OpenAI format other than OpenAI's and the demo model's."""
        return {
            name: entry
            for name, entry in self.models.entries.items()
            if entry.api == "chat" and name != DEMO_MODEL and not entry.base_url.startswith(_OPENAI_URL)
        }

    @property
    def demo(self) -> bool:
        return self.default_model.partition(":")[0] == DEMO_MODEL


class _Gateway(BaseModel):
    model_config = ConfigDict(frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0 selects a free port."""
    keys_file: Path | None = None
    """File that `banksman keys create` writes; None for the one in the data directory."""


class LocalSettings(Section):
    agents: int = Field(default=1, ge=1, le=64)
    """Number of agent processes. Each executes many runs at once."""
    runners: int = Field(default=1, ge=1, le=16)
    """Number of tool-runners. Each has its own workspaces and its own key."""
    example_tools: bool = True
    """Whether models are offered the mock weather tool of the examples."""
    ready_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds until every service should be ready; then `up` names those that are not, and continues."""
    drain_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds for all services together to stop gracefully; then they are killed."""


class _Operator(BaseModel):
    model_config = ConfigDict(frozen=True)

    storage_bytes: int | None = Field(default=None, ge=LEAST_STORAGE_BYTES)
    """Bytes that all streams together may use; None for 80 % of the disk."""


class UpSettings(ModelChoice):
    gateway: _Gateway = _Gateway()
    operator: _Operator = _Operator()
    local: LocalSettings = LocalSettings()


def _first_model(provider: str, entry: ProviderEntry) -> str:
    try:
        return _listed_models(entry.base_url, entry.key)[0]
    except _NO_LIST as error:
        server = "the server at OPENAI_BASE_URL" if provider == "openai" else f"the server {provider}"
        expected = f"{provider}:NAME, a model of {server} ({entry.base_url} lists none)"
        raise BadInput(DEFAULT_MODEL, None, expected) from error


@lru_cache(maxsize=8)
def _listed_models(base_url: str, key: str | None) -> tuple[str, ...]:
    """Return the models that an OpenAI-compatible server lists; raise one of `_NO_LIST` without a list."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = Request(f"{base_url.rstrip('/')}/models", headers=headers)
    with urlopen(request, timeout=LIST_TIMEOUT_S) as response:
        return tuple(model["id"] for model in listed_models(response.read(MAX_LIST_BYTES + 1)))


def adopt_vendor_names(environment: MutableMapping[str, str]) -> None:
    for theirs, ours in VENDOR_VARIABLES.items():
        if environment.get(theirs) and ours not in environment:
            environment[ours] = environment[theirs]


def adopt_default_model(environment: MutableMapping[str, str]) -> None:
    environment.update(dict.fromkeys(DEFAULT_MODEL_VARIABLES, load(ModelChoice).default_model))
