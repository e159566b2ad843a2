from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass

from banksman.model_server.chat import Call, Dialect, ValidatedRequest, estimated_tokens
from banksman.model_server.json_values import dumps
from banksman.model_server.script import ScriptedCall, ScriptedReply, ScriptedUsage

_WORDS = re.compile(r"\s*\S+\s?|\s+")
_CALL_ID_PREFIX: dict[Dialect, str] = {"openai": "call_", "anthropic": "toolu_", "responses": "call_"}
_ARGUMENT_FRAGMENT_CHARS = 24


@dataclass(frozen=True, slots=True)
class ResolvedReply:
    """A reply with final call ids, finish reason and usage, independent of the wire format."""

    text_chunks: tuple[str, ...]
    reasoning_chunks: tuple[str, ...]
    calls: tuple[Call, ...]
    finish_reason: str
    usage: ScriptedUsage | None
    """None: the response reports no usage."""

    @property
    def text(self) -> str:
        return "".join(self.text_chunks)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_chunks)


@dataclass(frozen=True, slots=True)
class EventStream:
    """The server-sent events of one response."""

    content: list[bytes]
    closing: list[bytes]
    """The event with the finish reason, and all later events."""


def resolve_reply(
    reply: ScriptedReply, chat: ValidatedRequest, *, derived_ids_of: str | None = None
) -> ResolvedReply:
    """Determine call ids, finish reason and usage of a reply.

    Args:
        reply: The reply of the script or the demo.
        chat: The request.
        derived_ids_of: Script from whose name call ids are derived; None creates random ids.
    """
    calls = tuple(
        Call(call.id or _call_id(chat, index, derived_ids_of), call.name, _argument_text(call))
        for index, call in enumerate(reply.tool_calls)
    )
    return ResolvedReply(
        text_chunks=_chunks(reply.text, reply.chunk_chars),
        reasoning_chunks=_chunks(reply.reasoning, reply.chunk_chars),
        calls=calls,
        finish_reason=reply.finish_reason or ("tool_calls" if calls else "stop"),
        usage=_usage(reply, calls, chat),
    )


def argument_fragments(arguments: str) -> list[str]:
    """Split a call's arguments into the pieces of a stream."""
    step = _ARGUMENT_FRAGMENT_CHARS
    return [arguments[start : start + step] for start in range(0, len(arguments), step)]


def _chunks(text: str, chunk_chars: int | None) -> tuple[str, ...]:
    if chunk_chars is None:
        return tuple(_WORDS.findall(text))
    return tuple(text[start : start + chunk_chars] for start in range(0, len(text), chunk_chars))


def _argument_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments)


def _call_id(chat: ValidatedRequest, index: int, derived_ids_of: str | None) -> str:
    prefix = _CALL_ID_PREFIX[chat.dialect]
    if derived_ids_of is None:
        return prefix + uuid.uuid4().hex[:24]
    origin = dumps([derived_ids_of, chat.conversation, chat.position, index])
    return prefix + hashlib.sha256(origin.encode()).hexdigest()[:24]


def _usage(reply: ScriptedReply, calls: tuple[Call, ...], chat: ValidatedRequest) -> ScriptedUsage | None:
    match reply.usage:
        case "missing":
            return None
        case "estimated":
            text_chars = len(reply.text) + len(reply.reasoning)
            call_chars = sum(len(call.name) + len(call.arguments) for call in calls)
            return ScriptedUsage(
                input_tokens=chat.input_tokens, output_tokens=estimated_tokens(text_chars + call_chars)
            )
        case ScriptedUsage() as stated:
            return stated
