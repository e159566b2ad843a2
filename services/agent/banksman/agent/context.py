"""How much a model can read, and about how much a request would have it read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from banksman.agent.protocols.base import ModelRequest
from banksman.contracts.messages import (
    AssistantMessage,
    Content,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolMessage,
    UserMessage,
)
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonValue
from banksman.runs.state import Measured

DEFAULT_CONTEXT_TOKENS = 128_000
"""What a model that the table does not know is taken to read."""

CONTEXT_TOKENS: Mapping[str, int] = {
    "anthropic:claude": 200_000,
    "openai:gpt-3.5": 16_385,
    "openai:gpt-4": 8_192,
    "openai:gpt-4-turbo": 128_000,
    "openai:gpt-4o": 128_000,
    "openai:gpt-4.1": 1_047_576,
    "openai:gpt-5": 272_000,
    "openai:o1": 200_000,
    "openai:o3": 200_000,
    "openai:o4": 200_000,
}
"""Input tokens of one request, by the beginning of `provider:model`; the longest that fits counts."""

BYTES_PER_TOKEN = 4
"""The estimate before a vendor has counted; in bytes, so that other scripts than Latin count for more."""
MESSAGE_TOKENS = 6
"""What the form of a message, a call or a result takes beside its text."""
IMAGE_TOKENS = 1_500
"""About what vendors count for an image, whatever the length of its URL."""
LEAST_RATIO, MOST_RATIO = 0.5, 4.0
"""How far a vendor's count may move the estimate; some compatible servers count nonsense."""


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a request, estimated."""

    fixed: int
    """System prompt and tools."""
    messages: tuple[int, ...]
    """Each message of the history."""
    ratio: float
    """What the vendor counted for each estimated token; 1 before it has."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.fixed + sum(self.messages)


def context_tokens(model: str, overrides: Mapping[str, int], own: int | None) -> int:
    """Tokens that a model can read in one request.

    Args:
        model: `provider:model`.
        overrides: The operator's table, by the beginning of the name; it goes before ours.
        own: What the assistant says; it goes before both.
    """
    if own is not None:
        return own
    for table in (overrides, CONTEXT_TOKENS):
        fitting = [prefix for prefix in table if model.startswith(prefix)]
        if fitting:
            return table[max(fitting, key=len)]
    return DEFAULT_CONTEXT_TOKENS


def size_of(request: ModelRequest, history: tuple[Message, ...], measured: Measured | None) -> Size:
    """About how many tokens a request has.

    Args:
        request: As it would be sent, for its system prompt and its tools.
        history: The messages as they were folded, which the request may tell in another form.
        measured: What the vendor counted of the last request with a beginning of this history.
    """
    fixed = _text_tokens(request.system) + sum(_tool_tokens(tool) for tool in request.tools)
    messages = tuple(message_tokens(message) for message in history)
    ratio = _ratio(fixed, messages, measured)
    return Size(round(fixed * ratio), tuple(round(count * ratio) for count in messages), ratio)


def message_tokens(message: Message) -> int:
    """About how many tokens a message has."""
    match message:
        case UserMessage(content=content):
            return MESSAGE_TOKENS + _content_tokens(content)
        case AssistantMessage():
            calls = sum(MESSAGE_TOKENS + _json_tokens(call.arguments) for call in message.calls)
            said = _text_tokens(message.content or "") + _json_tokens(message.provider_state)
            return MESSAGE_TOKENS + said + calls
        case ToolMessage(result=result):
            return MESSAGE_TOKENS + _json_tokens(result.content)
        case _:
            assert_never(message)


def _ratio(fixed: int, messages: tuple[int, ...], measured: Measured | None) -> float:
    if measured is None:
        return 1.0
    estimated = fixed + sum(messages[: measured.messages])
    return min(MOST_RATIO, max(LEAST_RATIO, measured.input_tokens / max(1, estimated)))


def _content_tokens(content: Content) -> int:
    return _text_tokens(content) if isinstance(content, str) else sum(_part_tokens(part) for part in content)


def _part_tokens(part: Part) -> int:
    match part:
        case TextPart(text=text):
            return _text_tokens(text)
        case FilePart(path=path):
            return _text_tokens(path)
        case ImagePart():
            return IMAGE_TOKENS
        case _:
            assert_never(part)


def _tool_tokens(tool: ToolDefinition) -> int:
    return MESSAGE_TOKENS + _text_tokens(tool.description) + _json_tokens(tool.input_schema)


def _json_tokens(value: JsonValue) -> int:
    return 0 if value is None else _text_tokens(json.dumps(value, ensure_ascii=False))


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)
