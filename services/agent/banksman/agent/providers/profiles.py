"""How vendors, servers and models differ from OpenAI's Chat Completions API, as data.

Every difference is a field of `Profile`, whose default is right for compatible servers in general.
`profiles.toml` states the differences; an operator's file (`models.profiles_file`) adds to it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.structured import instructed
from banksman.agent.providers.exchanges import CALL_ID
from banksman.agent.providers.facts import FactSource
from banksman.agent.providers.images import Images
from banksman.contracts.events import FinishReason
from banksman.contracts.validation_errors import expected


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, TypeError) as error:
        raise ValueError(f"must be a regular expression ({error})") from error


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]
"""A regular expression that ignores case."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SchemaRules:
    """What an API accepts in the schema of a tool's parameters. Its top level is always a plain object."""

    keywords: frozenset[str] | None = None
    """The accepted keywords besides `type`; None accepts all."""
    formats: frozenset[str] | None = None
    """The accepted values of `format`; None accepts all."""
    references: bool = False
    """Whether `$ref` is understood. Otherwise each reference is replaced by its target, and one that leads
    back to a schema around it by a schema for any value."""
    type_beside_any_of: bool = True
    """Whether a schema may have both `type` and `anyOf`; otherwise each alternative has the type."""
    one_type: bool = False
    """Whether each schema has exactly one type or `anyOf`, null is stated by `nullable`, and only texts are
    enumerated."""
    empty_objects: bool = True
    """Whether an object without properties is accepted; otherwise it becomes a text with JSON."""
    anchored_patterns: bool = True
    """Whether a `pattern` must begin with `^` and end with `$`, as for llama.cpp; others are left out."""
    property_name: Pattern = re.compile(".{1,512}", re.DOTALL)
    """Pattern of the names of properties. A tool with another name is left out."""


class Profile(BaseModel):
    """What one model at one address accepts and returns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    overflow_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of a request that is longer than the model's context, at any status but 429."""
    too_large_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of a request that is larger than what the account may send in a minute."""
    overflow_statuses: frozenset[int] = frozenset({413})
    """Statuses of such an error whatever its text."""
    overflow_statuses_without_text: frozenset[int] = frozenset()
    """Statuses of such an error from a server that sends no text with it."""
    spent_quota_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of an account without money or quota. It fails at once, unless the vendor names
    a time to wait."""
    transient_texts: tuple[Pattern, ...] = ()
    """Patterns in the error of a reply that the model wrote wrongly. Another attempt may succeed."""
    failed_reasons: frozenset[str] = frozenset()
    """Finish reasons of a reply that broke off at the server, in lower case; it is requested again."""
    system_role: Literal["system", "developer", "user"] = "system"
    """The role of the system prompt. `user` is for chat templates without another role for it."""
    joined_users: bool = False
    """Whether messages of users that follow each other are sent as one."""
    null_content: bool = True
    """Whether a reply of calls only has the content null; otherwise it is empty."""
    missing_reasoning: str | None = None
    """The `reasoning_content` of replies without it, for servers that require the field."""
    user_after_tool: bool = True
    """Whether a user message may follow a tool's result; otherwise a reply is put between them."""
    stream_usage: bool = True
    """Whether a request may ask for the usage at the end of the stream (`stream_options`)."""
    tool_message_name: bool = True
    """Whether a message with a tool's result has the tool's name, which some chat templates need."""
    call_id: Pattern = CALL_ID
    """Pattern of call ids. Others are replaced by nine letters and digits, which every vendor accepts."""
    reasoning_returned: Literal["always", "with_calls", "never"] = "always"
    """Which replies are sent back with the reasoning that the model wrote into a field of its own."""
    first_call_state: dict[str, Any] = {}
    """Fields of the first call of a reply that another model wrote."""
    api: Literal["chat", "responses"] = "chat"
    """The API of an address with both. A model that the Chat Completions API refuses moves by itself."""
    encrypted_reasoning: bool = True
    """Whether a request to the Responses API may ask for encrypted reasoning."""
    reasoning_summary: bool = False
    """Whether a request to the Responses API or Gemini's own API asks for summaries of the reasoning, which
    people read. A model that refuses them is asked without."""
    facts: FactSource = "none"
    """Where the server states the context size of a model and whether it sees images."""
    images: Images = "any"
    """The images that may be sent; a note replaces others. A model that refuses images gets notes too."""
    tool_name: Pattern = re.compile("[a-zA-Z0-9_-]{1,64}")
    """Pattern of the names of tools. A tool with another name is left out."""
    max_tools: int = 128
    """Maximum tools of a request; further ones are left out."""
    max_description_chars: int | None = None
    """Maximum characters of a tool's description; longer ones are cut."""
    tool_schema: SchemaRules = SchemaRules()
    finish_reasons: dict[str, FinishReason] = {}
    """The meaning of the vendor's finish reasons, in lower case and up to a colon."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field with the limit of output tokens. OpenAI's reasoning models refuse the older one."""

    documents: Literal["any", "own", "none"] = "none"
    """Whether a request may contain PDF documents; `own` only in the vendor's own API, which the extra
    `library` uses. Others get the text of a document from `read_file`."""

    structured_output: Literal["always", "without_tools", "never"] = "without_tools"
    """When a request may contain a response schema. Many servers apply it to each reply, and so exclude calls
    of tools. Without it, the prompt states the schema."""
    thinking: Literal["adaptive", "budget", "none"] = "budget"
    """How a request to Anthropic's API states a reasoning effort: as an effort that the model adapts to the
    request, or as a number of tokens."""

    def is_overflow(self, status: int | None, error: str) -> bool:
        """Return whether an error means that a shorter request would be accepted."""
        if status == 429:
            return _found(self.too_large_texts, error)
        if status in self.overflow_statuses or _found(self.overflow_texts, error):
            return True
        return status in self.overflow_statuses_without_text and _NO_TEXT.fullmatch(error) is not None

    def is_transient(self, error: str) -> bool:
        """Return whether the model wrote a reply that its server could not read."""
        return _found(self.transient_texts, error)

    def is_spent_quota(self, error: str) -> bool:
        """Return whether requests fail until the account is paid or its quota is raised."""
        return _found(self.spent_quota_texts, error)


_NO_TEXT = re.compile(r"(\d{3}( [A-Za-z ]+)?)?")
"""The status line of a response without a body."""


def _found(patterns: tuple[Pattern, ...], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


class ProfileEntry(BaseModel):
    """Differences of the models that match all patterns, in the syntax of `fnmatch`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendors: tuple[str, ...] = ("*",)
    """Patterns of the vendor, which the provider's entry names or `vendors` finds; it is empty if unknown."""
    hosts: tuple[str, ...] = ("*",)
    """Patterns of `host` or `host:port` of the base URL."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the vendor's name of the model, in lower case."""
    profile: dict[str, Any]
    """Fields of `Profile`."""

    @field_validator("profile")
    @classmethod
    def _known(cls, fields: dict[str, Any]) -> dict[str, Any]:
        Profile.model_validate(fields)
        return fields

    def matches(self, vendor: str, address: tuple[str, str], model: str) -> bool:
        return (
            _any_matches(self.vendors, vendor)
            and any(_any_matches(self.hosts, host) for host in address)
            and _any_matches(self.models, model)
        )


class Refusal(BaseModel):
    """What a refusal says about the model. The request is repeated with these fields of the profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Pattern
    statuses: frozenset[int] = frozenset({400, 403, 422, 500})
    profile: dict[str, Any]

    @cached_property
    def fields(self) -> dict[str, Any]:
        profile = Profile.model_validate(self.profile)
        return {name: getattr(profile, name) for name in self.profile}


class ProfileFile(BaseModel):
    """A file of profiles, such as `profiles.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendors: dict[str, tuple[str, ...]] = {}
    """Patterns of `host` or `host:port` by vendor, for providers that name no vendor."""
    entries: tuple[ProfileEntry, ...] = ()
    refusals: dict[str, Refusal] = {}


def read_profiles(file: Path) -> ProfileFile:
    """Read an operator's file; `ValueError` states what is wrong in it."""
    try:
        return ProfileFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, mistake['loc']))} {expected(mistake)}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"a TOML file of profiles ({error})") from error


# Bounded, because tenants choose the names of models.
@lru_cache(maxsize=512)
def profile_of(base_url: str, model: str, vendor: str | None = None, file: Path | None = None) -> Profile:
    """Return the profile of a model; of two entries that match, the later one applies, field by field.

    The entries of the operator's `file` follow the built-in ones.
    """
    parts = urlsplit(base_url)
    address = (parts.hostname or "", f"{parts.hostname}:{parts.port}")
    files = _files(file)
    named = vendor or next((name for one in reversed(files) for name in _vendors_at(one, address)), "")
    fields: dict[str, Any] = {}
    for entry in (entry for one in files for entry in one.entries):
        if entry.matches(named, address, model.lower()):
            for name, value in entry.profile.items():
                fields[name] = {**fields.get(name, {}), **value} if isinstance(value, dict) else value
    return Profile.model_validate(fields)


def refusals_of(file: Path | None) -> dict[str, Refusal]:
    """Return what refusals say about models, by name."""
    return {name: one for each in _files(file) for name, one in each.refusals.items()}


def with_profile(request: ModelRequest, profile: Profile) -> ModelRequest:
    """Return a request whose response schema is in the prompt if the model does not take it beside tools."""
    if profile.structured_output == "always" or (profile.structured_output != "never" and not request.tools):
        return request
    return instructed(request)


def _vendors_at(file: ProfileFile, address: tuple[str, str]) -> Iterator[str]:
    for vendor, hosts in file.vendors.items():
        if any(_any_matches(hosts, host) for host in address):
            yield vendor


def _any_matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _files(of_operator: Path | None) -> tuple[ProfileFile, ...]:
    return (_built_in(), _of_operator(of_operator)) if of_operator else (_built_in(),)


@cache
def _built_in() -> ProfileFile:
    text = resources.files("banksman.agent.providers").joinpath("profiles.toml").read_text()
    return ProfileFile.model_validate(tomllib.loads(text))


_of_operator = cache(read_profiles)
