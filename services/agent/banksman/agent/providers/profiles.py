"""How vendors, servers and models differ from OpenAI's Chat Completions API, as data.

Every difference is a field of `Profile`, whose default is right for compatible servers in general.
`profiles.toml` states the differences.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.structured import instructed

Pattern = Annotated[re.Pattern[str], BeforeValidator(lambda text: re.compile(text, re.IGNORECASE))]
"""A regular expression that ignores case."""


class Profile(BaseModel):
    """What one model at one address accepts and returns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overflow_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of a request that is longer than the model's context, at any status but 429."""
    overflow_statuses: frozenset[int] = frozenset({413})
    """Statuses of such an error whatever its text."""
    overflow_statuses_without_text: frozenset[int] = frozenset()
    """Statuses of such an error from a server that sends no text with it."""
    spent_quota_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of an account without money or quota. It fails at once, unless the vendor names
    a time to wait."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field with the limit of output tokens. OpenAI's reasoning models refuse the older one."""

    structured_output: Literal["always", "without_tools", "never"] = "without_tools"
    """When a request may contain a response schema. Many servers apply it to each reply, and so exclude calls
    of tools. Without it, the prompt states the schema."""
    thinking: Literal["adaptive", "budget", "none"] = "budget"
    """How a request to Anthropic's API states a reasoning effort: as an effort that the model adapts to the
    request, or as a number of tokens."""

    def is_overflow(self, status: int | None, error: str) -> bool:
        """Return whether an error means that the request is longer than the model's context."""
        if status == 429:
            return False
        if status in self.overflow_statuses or _found(self.overflow_texts, error):
            return True
        return status in self.overflow_statuses_without_text and _NO_TEXT.fullmatch(error) is not None

    def is_spent_quota(self, error: str) -> bool:
        """Return whether an error means that requests fail until somebody pays or the quota is raised."""
        return _found(self.spent_quota_texts, error)


_NO_TEXT = re.compile(r"(\d{3}( [A-Za-z ]+)?)?")
"""The status line of a response without a body."""


def _found(patterns: tuple[Pattern, ...], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


class ProfileEntry(BaseModel):
    """Differences of the models that match all patterns, in the syntax of `fnmatch`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: str = "*"
    hosts: tuple[str, ...] = ("*",)
    """Patterns of `host` or `host:port` of the base URL."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the vendor's name of the model, in lower case."""
    profile: dict[str, Any]
    """Fields of `Profile`."""

    def matches(self, provider: str, address: tuple[str, str], model: str) -> bool:
        return (
            fnmatchcase(provider, self.provider)
            and any(fnmatchcase(host, pattern) for pattern in self.hosts for host in address)
            and any(fnmatchcase(model, pattern) for pattern in self.models)
        )


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    entries: tuple[ProfileEntry, ...] = ()


# Bounded, because tenants choose the names of models.
@lru_cache(maxsize=512)
def profile_of(provider: str, base_url: str, model: str) -> Profile:
    """Return the profile of a model; of two entries that match, the later one applies, field by field."""
    parts = urlsplit(base_url)
    address = (parts.hostname or "", f"{parts.hostname}:{parts.port}")
    fields: dict[str, Any] = {}
    for entry in _entries():
        if entry.matches(provider, address, model.lower()):
            fields |= entry.profile
    return Profile.model_validate(fields)


def with_profile(request: ModelRequest, profile: Profile) -> ModelRequest:
    """Return a request whose response schema is in the prompt if the model does not take it beside tools."""
    if profile.structured_output == "always" or (profile.structured_output != "never" and not request.tools):
        return request
    return instructed(request)


@cache
def _entries() -> tuple[ProfileEntry, ...]:
    text = files("banksman.agent.providers").joinpath("profiles.toml").read_text()
    return _File.model_validate(tomllib.loads(text)).entries
