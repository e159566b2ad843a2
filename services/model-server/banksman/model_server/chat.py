"""A request of a client, independent of the vendor's format, and JSON as the vendors send it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias, TypeGuard, cast

Json: TypeAlias = dict[str, Any]

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> str:
    """Return compact JSON without escapes for non-ASCII characters, as the vendors send it."""
    return _encode(value)


def as_object(value: object) -> Json | None:
    return cast(Json, value) if isinstance(value, dict) else None


def is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def objects(value: object) -> list[Json]:
    """Return the objects of a list; none if the value is no list."""
    return [one for one in cast(list[Any], value) if isinstance(one, dict)] if isinstance(value, list) else []


def loads_object(text: str | bytes) -> Json | None:
    try:
        return as_object(json.loads(text))
    except ValueError:
        return None


Dialect = Literal["openai", "anthropic", "responses"]
"""Wire format of a request.

- `openai`: chat completions
- `anthropic`: messages
- `responses`: OpenAI's responses
"""


@dataclass(frozen=True, slots=True)
class UserText:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it; it may be invalid."""


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolOutput:
    call_id: str
    text: str
    is_error: bool = False


Item: TypeAlias = UserText | AssistantTurn | ToolOutput


@dataclass(frozen=True, slots=True)
class ChatRequest:
    dialect: Dialect
    model: str
    items: tuple[Item, ...]
    """The history, oldest first, without system text."""
    system: str = ""
    tools: frozenset[str] = frozenset()
    """Names of the offered tools."""
    namespaces: Mapping[str, str] = field(default_factory=dict[str, str])
    """Namespaces of the tools that have one, by the tool's name here, `{namespace}__{name}`. Only `responses`
    has namespaces."""
    parallel_calls: bool = True
    stream: bool = False
    include_usage: bool = True
    """Whether a stream reports usage. OpenAI streams do so only on request."""
    tools_chars: int = 0

    @property
    def input_tokens(self) -> int:
        return estimated_tokens(len(self.system) + sum(map(_chars, self.items)) + self.tools_chars)


def _chars(item: Item) -> int:
    calls = item.calls if isinstance(item, AssistantTurn) else ()
    return len(item.text) + sum(len(call.name) + len(call.arguments) for call in calls)


def estimated_tokens(chars: int) -> int:
    """Return the number of tokens of a text at four characters per token, rounded up."""
    return (chars + 3) // 4


ErrorType = Literal["invalid_request_error", "not_found_error"]
"""The vendor's type of an error.

- `invalid_request_error`: the request breaks a rule of the wire format
- `not_found_error`: the model or the path does not exist
"""


@dataclass(eq=False)
class RequestRefused(Exception):
    message: str
    param: str | None = None
    _: KW_ONLY
    code: str | None = None
    status: int = 400
    error_type: ErrorType = "invalid_request_error"
    details: Json | None = None

    def __str__(self) -> str:
        return self.message


def model_not_found(model: str) -> RequestRefused:
    return RequestRefused(
        f"The model `{model}` does not exist. The models of this server are listed at /v1/models.",
        code="model_not_found",
        status=404,
        error_type="not_found_error",
    )
