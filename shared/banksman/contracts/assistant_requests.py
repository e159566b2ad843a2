"""Requests and replies about assistants, over HTTP and over NATS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from banksman.contracts.assistant_files import AssistantFile, SubmittedFiles
from banksman.contracts.assistants import (
    ApprovalRule,
    Assistant,
    FallbackModels,
    Limits,
    ModelOptions,
    ToolSettings,
)
from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, JsonValue, Text, Token, Wire, parse

_SETTINGS: Mapping[str, type[BaseModel]] = {
    "options": ModelOptions,
    "tools": ToolSettings,
    "limits": Limits,
    "approval_policy": ApprovalRule,
    "files": AssistantFile,
}


class AssistantBody(Wire):
    """An assistant as clients submit it. Tools are off by default."""

    # FastAPI silences pydantic's warnings about the alias of a body only while it creates the route.
    model_config = ConfigDict(defer_build=False)

    name: str = Field(default="", max_length=200)
    service: str = Field(default="banksman", max_length=64)
    model: str | None = Field(default=None, max_length=200)
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    variables: JsonObject = Field(default_factory=dict)
    files: SubmittedFiles = ()
    """Files that each new workspace of its conversations starts with."""

    def assistant(self, assistant_id: str) -> Assistant:
        """Return the assistant to store."""
        return Assistant(
            id=assistant_id, **{name: getattr(self, name) for name in AssistantBody.model_fields}
        )


class NewAssistant(AssistantBody):
    """An assistant to create."""

    id: Token | None = None
    """None lets the gateway generate one."""


class AssistantUpdate(AssistantBody):
    """An assistant that replaces an existing one."""

    revision: int | None = None
    """The revision to replace; None replaces the current one."""


class AssistantList(Wire):
    """All assistants of a tenant, sorted by id; without the contents of their files."""

    items: tuple[Assistant, ...]
    next: None = None
    """Present because all lists have it; there is one page."""


class AssistantDeleted(Wire):
    """An assistant was deleted."""

    id: Token


B = TypeVar("B", bound=AssistantBody)


def parse_assistant(model: type[B], data: bytes) -> B:
    """Parse a submitted assistant and refuse unknown fields at every level.

    The stored models ignore unknown fields, because a newer version may have written them. In a request an
    unknown field is a typing error of the client.

    Raises:
        BadInput: A field is invalid or unknown. It names the first one.
    """
    body = parse(model, data)
    submitted = cast(JsonObject, json.loads(data))
    for field, settings in _SETTINGS.items():
        value = submitted.get(field)
        for item in value if isinstance(value, list) else [value]:
            _refuse_unknown(field, settings, item)
    return body


def _refuse_unknown(field: str, settings: type[BaseModel], value: JsonValue) -> None:
    names = value.keys() if isinstance(value, dict) else ()
    for name in sorted(set(names) - set(settings.model_fields)):
        known = ", ".join(sorted(settings.model_fields))
        raise BadInput(f"{field}.{name}", None, f"is not a known field; expected one of {known}")
