"""Assistants as clients write and read them, over HTTP and over NATS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar, cast

from pydantic import BaseModel, Field

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
    """An assistant as clients write it; tools are off unless they are asked for."""

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
    """What each new workspace of its conversations starts with."""

    def assistant(self, assistant_id: str) -> Assistant:
        """What is stored."""
        return Assistant(
            id=assistant_id, **{name: getattr(self, name) for name in AssistantBody.model_fields}
        )


class NewAssistant(AssistantBody):
    """An assistant to create."""

    id: Token | None = None
    """None for one that we make."""


class AssistantUpdate(AssistantBody):
    """An assistant in the place of one that exists."""

    revision: int | None = None
    """The revision that it is to replace; None for whichever it is now."""


class AssistantList(Wire):
    """All assistants of a tenant, by id; without the contents of their files."""

    items: tuple[Assistant, ...]
    next: None = None
    """For the form that all lists have; there is one page."""


class AssistantDeleted(Wire):
    """An assistant is gone."""

    id: Token


B = TypeVar("B", bound=AssistantBody)


def parse_assistant(model: type[B], data: bytes) -> B:
    """Read what a client writes of an assistant.

    What is stored ignores unknown names, for it may be of a newer writer; a typing error of a client, also
    within its settings, is told instead.

    Raises:
        BadInput: naming the first field that is wrong.
    """
    body = parse(model, data)
    given = cast(JsonObject, json.loads(data))
    for field, settings in _SETTINGS.items():
        value = given.get(field)
        for one in value if isinstance(value, list) else [value]:
            _refuse_unknown(field, settings, one)
    return body


def _refuse_unknown(field: str, settings: type[BaseModel], given: JsonValue) -> None:
    names = given.keys() if isinstance(given, dict) else ()
    for name in sorted(set(names) - set(settings.model_fields)):
        raise BadInput(f"{field}.{name}", None, f"one of {', '.join(sorted(settings.model_fields))}")
