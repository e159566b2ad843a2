from __future__ import annotations

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from banksman.model_server.chat import (
    Call,
    ChatRequest,
    Dialect,
    Json,
    RequestRefused,
    dumps,
    estimated_tokens,
    model_not_found,
)
from banksman.model_server.demo_reply import demo_reply
from banksman.model_server.script import RawReply, Script, ScriptedCall, ScriptedReply, ScriptedUsage

DEMO_MODEL = "demo"
_SCRIPTED_PREFIX = "scripted/"


def scripted_model(name: str) -> str:
    return _SCRIPTED_PREFIX + name


def script_name(model: str) -> str | None:
    return model.removeprefix(_SCRIPTED_PREFIX) if model.startswith(_SCRIPTED_PREFIX) else None


@dataclass(frozen=True, slots=True)
class ChosenReply:
    reply: ScriptedReply | RawReply
    derived_ids_of: str | None = None
    """Script from which call ids are derived; None: random ids."""


class Models:
    def __init__(self, demo_chunk_delay_s: float, scripts: Mapping[str, Script]) -> None:
        self._demo_chunk_delay_s = demo_chunk_delay_s
        self._scripts = dict(scripts)
        self._played: Counter[str] = Counter()
        self._faulted: Counter[tuple[str, str, int]] = Counter()

    def load(self, name: str, script: Script) -> str:
        self.unload(name)
        self._scripts[name] = script
        return scripted_model(name)

    def unload(self, name: str) -> None:
        self._scripts.pop(name, None)
        self._played.pop(name, None)
        for key in [key for key in self._faulted if key[0] == name]:
            del self._faulted[key]

    def names(self) -> list[str]:
        return [DEMO_MODEL, *map(scripted_model, self._scripts)]

    def reply(self, chat: ChatRequest) -> ChosenReply:
        if chat.model == DEMO_MODEL:
            return ChosenReply(demo_reply(chat, chunk_delay_s=self._demo_chunk_delay_s))
        name = script_name(chat.model)
        script = self._scripts.get(name) if name is not None else None
        if name is None or script is None:
            raise model_not_found(chat.model)
        return self._scripted(name, script, chat)

    def _scripted(self, name: str, script: Script, chat: ChatRequest) -> ChosenReply:
        index = chat.position if script.by == "position" else self._played[name]
        self._played[name] += 1
        reply = _reply_at(name, script, index)
        if isinstance(reply, ScriptedReply) and reply.fault is not None and reply.fault.times is not None:
            key = (name, chat.conversation, index if script.by == "position" else 0)
            self._faulted[key] += 1
            if self._faulted[key] > reply.fault.times:
                reply = reply.model_copy(update={"fault": None})
        return ChosenReply(reply, name if script.call_ids == "derived" else None)


def _reply_at(name: str, script: Script, index: int) -> ScriptedReply | RawReply:
    if index < len(script.replies):
        return script.replies[index]
    match script.at_end:
        case "repeat":
            return script.replies[-1]
        case "loop":
            return script.replies[index % len(script.replies)]
        case "refuse":
            raise RequestRefused(
                f"The script `{name}` has {len(script.replies)} replies; number {index + 1} was requested.",
                "messages",
                code="script_exhausted",
            )


_WORDS = re.compile(r"\s*\S+\s?|\s+")
_CALL_ID_PREFIX: dict[Dialect, str] = {"openai": "call_", "anthropic": "toolu_", "responses": "call_"}
_ARGUMENT_FRAGMENT_CHARS = 24


@dataclass(frozen=True, slots=True)
class ResolvedReply:
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
    content: list[bytes]
    closing: list[bytes]


def typed_event(kind: str, fields: Json) -> bytes:
    """Return an SSE event that names its type and repeats it in its data."""
    return f"event: {kind}\ndata: {dumps({'type': kind} | fields)}\n\n".encode()


def resolve_reply(
    reply: ScriptedReply, chat: ChatRequest, *, derived_ids_of: str | None = None
) -> ResolvedReply:
    """Determine call ids, finish reason and usage of a reply. Without `derived_ids_of`, ids are random."""
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


def argument_fragments(arguments: str) -> tuple[str, ...]:
    return _chunks(arguments, _ARGUMENT_FRAGMENT_CHARS)


def _chunks(text: str, chunk_chars: int | None) -> tuple[str, ...]:
    if chunk_chars is None:
        return tuple(_WORDS.findall(text))
    return tuple(text[start : start + chunk_chars] for start in range(0, len(text), chunk_chars))


def _argument_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments)


def _call_id(chat: ChatRequest, index: int, derived_ids_of: str | None) -> str:
    prefix = _CALL_ID_PREFIX[chat.dialect]
    if derived_ids_of is None:
        return prefix + uuid.uuid4().hex[:24]
    origin = dumps([derived_ids_of, chat.conversation, chat.position, index])
    return prefix + hashlib.sha256(origin.encode()).hexdigest()[:24]


def _usage(reply: ScriptedReply, calls: tuple[Call, ...], chat: ChatRequest) -> ScriptedUsage | None:
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
