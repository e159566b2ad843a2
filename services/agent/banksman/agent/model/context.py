"""The context sizes of models, estimates of the tokens of a request, and where to cut a history. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.images import result_images
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
    is_document,
    is_image,
)
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonValue
from banksman.runs.state import Measured

DEFAULT_CONTEXT_TOKENS = 128_000
"""The context size of a model that the tables do not list."""

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
"""Input tokens of one request, by the start of `provider:model`; the longest match counts."""

BYTES_PER_TOKEN = 4
"""The estimate before a vendor has counted. In bytes, because scripts other than Latin take more tokens per
character."""
MESSAGE_TOKENS = 6
"""Tokens that the structure of a message, a call or a result adds to its text."""
IMAGE_TOKENS = 1_500
"""Approximate tokens that vendors count for an image; the length of its URL does not matter."""
LEAST_RATIO, MOST_RATIO = 0.5, 4.0
"""The range in which a vendor's count may change the estimate: some compatible servers return wrong
counts."""

KEPT_SHARE = 0.5
"""Share of the limit that the kept messages may take: another compaction should not follow at once."""
SUMMARY_SHARE = 0.1
"""Share of the limit that a summary may take."""
LEAST_GAIN = 0.1
"""Share of the limit that a compaction must save; otherwise the request is sent unchanged."""


@dataclass(frozen=True, slots=True)
class Size:
    fixed: int
    """Tokens of the system prompt and the tools."""
    messages: tuple[int, ...]
    """Tokens of each message of the history."""
    ratio: float
    """Tokens that the vendor counted for each estimated token; 1 before it has counted."""

    @property
    def total(self) -> int:
        return self.fixed + sum(self.messages)


def context_tokens(model: str, overrides: Mapping[str, int], own: int | None, told: int | None = None) -> int:
    """Return the context size of `provider:model` in tokens.

    The assistant's limit `own` takes precedence over the operator's table `overrides`, then what the server
    `told`, then the built-in table. Both tables are by the start of the name.
    """
    if own is not None:
        return own
    for table in (overrides, {model: told} if told else {}, CONTEXT_TOKENS):
        matching = [prefix for prefix in table if model.startswith(prefix)]
        if matching:
            return table[max(matching, key=len)]
    return DEFAULT_CONTEXT_TOKENS


def size_of(request: ModelRequest, history: tuple[Message, ...], measured: Measured | None) -> Size:
    """Return the estimated size of a request whose messages were folded as `history`.

    `measured` is the vendor's count of the last request, which contained a beginning of this history.
    """
    fixed = _text_tokens(request.system) + sum(_tool_tokens(tool) for tool in request.tools)
    messages = tuple(_message_tokens(message) for message in history)
    ratio = _ratio(fixed, messages, measured)
    return Size(round(fixed * ratio), tuple(round(count * ratio) for count in messages), ratio)


def _message_tokens(message: Message) -> int:
    match message:
        case UserMessage(content=content):
            return MESSAGE_TOKENS + _content_tokens(content)
        case AssistantMessage():
            calls = sum(MESSAGE_TOKENS + _json_tokens(call.arguments) for call in message.calls)
            text = _text_tokens(message.content or "") + _json_tokens(message.provider_state)
            return MESSAGE_TOKENS + text + calls
        case ToolMessage(result=result):
            images = IMAGE_TOKENS * len(result_images(message))
            return MESSAGE_TOKENS + _json_tokens(result.content) + images
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
            return _text_tokens(path) + (IMAGE_TOKENS if is_image(path) or is_document(path) else 0)
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


@dataclass(frozen=True, slots=True)
class CompactionCut:
    kept_from: int
    """Index of the first message that is kept; the number of messages if none is."""
    tokens_before: int
    max_summary_tokens: int


def cut(
    history: tuple[Message, ...], size: Size, *, limit: int, message: UserMessage, iterations: int | None
) -> CompactionCut | None:
    """Return where to cut so that the kept part has room to grow; None if a cut would save too little.

    Results stay with the reply that requested them, so that both vendors accept the kept part. The open run's
    `message` is kept wherever it stands. At most `iterations` replies are kept; None for all that fit.
    """
    summary = round(limit * SUMMARY_SHARE)
    room = (limit - size.fixed) * KEPT_SHARE
    behind = [0, *accumulate(reversed(size.messages))]
    first = 1 if iterations is None else _beginning(history, iterations)
    at = next(
        (at for at in _borders(history) if at >= first and behind[len(history) - at] <= room), len(history)
    )
    kept = size.messages[history.index(message)] if message in history[:at] else 0
    saved = sum(size.messages[:at]) - summary - kept
    return CompactionCut(at, size.total, summary) if saved >= limit * LEAST_GAIN else None


def _borders(history: tuple[Message, ...]) -> list[int]:
    return [at for at in range(1, len(history)) if not isinstance(history[at], ToolMessage)]


def _beginning(history: tuple[Message, ...], iterations: int) -> int:
    """Return the index at which the last replies begin, with the user messages directly before them."""
    replies = [at for at, message in enumerate(history) if isinstance(message, AssistantMessage)]
    if len(replies) <= iterations:
        return 1
    at = replies[-iterations] if iterations else len(history)
    while at > 1 and isinstance(history[at - 1], UserMessage):
        at -= 1
    return at
