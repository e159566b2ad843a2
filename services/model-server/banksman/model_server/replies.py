"""A reply of a model, independent of the vendor's format, and what the formats share."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from banksman.model_server.chat import Call, ChatRequest, Dialect, Json, dumps, estimated_tokens

_WORDS = re.compile(r"\s*\S+\s?|\s+")
_CALL_ID_PREFIX: dict[Dialect, str] = {"openai": "call_", "anthropic": "toolu_", "responses": "call_"}
_ARGUMENT_FRAGMENT_CHARS = 24


@dataclass(frozen=True, slots=True)
class TokenCounts:
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """The part of `input_tokens` that came from a cache (Anthropic reports it separately)."""


@dataclass(frozen=True, slots=True)
class Reply:
    text_chunks: tuple[str, ...]
    reasoning_chunks: tuple[str, ...]
    calls: tuple[Call, ...]
    finish_reason: str
    """`stop`, `tool_calls`, `length` or `content_filter`, for which the vendor's own value is sent. Other
    values are sent unchanged."""
    usage: TokenCounts | None
    """None: the response reports no usage."""

    @property
    def text(self) -> str:
        return "".join(self.text_chunks)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_chunks)


@dataclass(frozen=True, slots=True)
class EventStream:
    content: list[bytes]
    closing: list[bytes]


def reply_of(chat: ChatRequest, text: str, calls: tuple[Call, ...]) -> Reply:
    """Return a reply of one word per chunk, whose usage is an estimate."""
    finish_reason = "tool_calls" if calls else "stop"
    return Reply(words(text), (), calls, finish_reason, estimated_usage(chat, len(text), calls))


def estimated_usage(chat: ChatRequest, text_chars: int, calls: tuple[Call, ...]) -> TokenCounts:
    call_chars = sum(len(call.name) + len(call.arguments) for call in calls)
    return TokenCounts(chat.input_tokens, estimated_tokens(text_chars + call_chars))


def call_id(dialect: Dialect, digits: str | None = None) -> str:
    """Return an id in the vendor's form; it is random without `digits`."""
    return _CALL_ID_PREFIX[dialect] + (digits or uuid.uuid4().hex)[:24]


def words(text: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(text))


def chunks(text: str, chunk_chars: int) -> tuple[str, ...]:
    return tuple(text[start : start + chunk_chars] for start in range(0, len(text), chunk_chars))


def argument_fragments(arguments: str) -> tuple[str, ...]:
    return chunks(arguments, _ARGUMENT_FRAGMENT_CHARS)


def typed_event(kind: str, fields: Json) -> bytes:
    """Return an SSE event that names its type and repeats it in its data."""
    return f"event: {kind}\ndata: {dumps({'type': kind} | fields)}\n\n".encode()
