"""The servers of models, by the name of their provider: the settings that agents and gateways share."""

from __future__ import annotations

import json
from typing import Any, Final, Self, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from banksman.contracts.model_servers import ModelApi, ProviderName
from banksman.contracts.urls import HttpUrl
from banksman.runtime.settings import Section

OPENAI_URL: Final = "https://api.openai.com/v1"
MAX_LIST_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes of a list of models, twice those of the longest known one; parsing them takes 0.2 s."""


def listed_models(body: bytes) -> list[dict[str, Any]]:
    """Return the entries of a server's list of models, each with an `id`: under `data`, or as the whole body.

    Raises:
        ValueError: The body is longer than `MAX_LIST_BYTES`, or no such list; the message has its beginning.
    """
    if len(body) > MAX_LIST_BYTES:
        raise ValueError(f"the list of models is longer than {MAX_LIST_BYTES} bytes")
    try:
        found: Any = json.loads(body)
        listed = cast(list[dict[str, Any]], found["data"] if isinstance(found, dict) else found)
        return [{**entry, "id": str(entry["id"])} for entry in listed]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = " ".join(body[:200].decode("utf-8", "replace").split())
        raise ValueError(f"the reply is no list of models: {text}") from error


class ProviderEntry(Section):
    """One address that serves models."""

    api: ModelApi = "chat"
    base_url: HttpUrl = ""
    """The base URL as the vendor documents it, for `chat` with its version prefix."""
    api_key: SecretStr | None = None
    """None sends no key, as for most local servers."""
    vendor: str | None = Field(default=None, pattern=r"^[a-z0-9._-]{1,40}$")
    """The vendor in the profiles of models; None finds it by the host of `base_url`."""

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        if not self.base_url:
            raise ValueError("an entry with base_url, the address of the API such as https://host/v1")
        return self

    @property
    def key(self) -> str | None:
        return self.api_key.get_secret_value() if self.api_key else None


class ModelServers(BaseModel):
    """The addresses and keys of section `models`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    providers: dict[ProviderName, ProviderEntry] = Field(default_factory=dict[str, ProviderEntry])
    """Servers by the name that stands before the colon of their models' names: `gemini:gemini-3-pro`. An
    entry named like a provider of the settings below replaces it."""
    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: HttpUrl = "https://api.anthropic.com"
    openai_api_key: SecretStr | None = None
    """None for compatible servers without keys; OpenAI's own API requires a key."""
    openai_base_url: HttpUrl = OPENAI_URL
    """Base URL of a server with the OpenAI format, including its version prefix."""
    backboard_api_key: SecretStr | None = None
    backboard_base_url: HttpUrl = "https://app.backboard.io/api"
    demo_base_url: HttpUrl | None = None
    """Base URL of the model server's OpenAI endpoint; None without a model server."""

    @property
    def entries(self) -> dict[str, ProviderEntry]:
        """All providers by name. The demo model needs a server; the others may lack their key."""
        own: dict[str, ProviderEntry] = {}
        if self.demo_base_url is not None:
            own["demo"] = ProviderEntry(base_url=self.demo_base_url)
        return {
            "anthropic": ProviderEntry(
                api="anthropic", base_url=self.anthropic_base_url, api_key=self.anthropic_api_key
            ),
            "openai": ProviderEntry(base_url=self.openai_base_url, api_key=self.openai_api_key),
            "backboard": ProviderEntry(
                api="backboard", base_url=self.backboard_base_url, api_key=self.backboard_api_key
            ),
            **own,
            **self.providers,
        }

    @property
    def configured(self) -> dict[str, ProviderEntry]:
        """The providers for which the operator set something; tenants cannot replace them."""
        unused = ModelServers().entries
        return {name: entry for name, entry in self.entries.items() if entry != unused.get(name)}
