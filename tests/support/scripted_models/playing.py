"""The scripts of a model server, and the replies that they choose."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from banksman.model_server.chat import (
    AssistantTurn,
    Call,
    ChatRequest,
    RequestRefused,
    UserText,
    dumps,
    model_not_found,
)
from banksman.model_server.replies import Reply, TokenCounts, call_id, chunks, estimated_usage, words
from tests.support.scripted_models.script import RawReply, Script, ScriptedCall, ScriptedReply

_SCRIPTED_PREFIX = "scripted/"


def scripted_model(name: str) -> str:
    """Return the name of the model that plays a script."""
    return _SCRIPTED_PREFIX + name


def script_name(model: str) -> str | None:
    """Return the script of a model; None for other models."""
    return model.removeprefix(_SCRIPTED_PREFIX) if model.startswith(_SCRIPTED_PREFIX) else None


@dataclass(frozen=True, slots=True)
class ChosenReply:
    """The reply of a script to one request."""

    reply: ScriptedReply | RawReply
    derived_ids_of: str | None = None
    """Script from which call ids are derived; None: random ids."""


class Scripts:
    """The loaded scripts, and how far each was played."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = dict(scripts)
        self._played: Counter[str] = Counter()
        self._faulted: Counter[tuple[str, str, int]] = Counter()

    def load(self, name: str, script: Script) -> str:
        """Load a script, which begins with its first reply; return the name of its model."""
        self.unload(name)
        self._scripts[name] = script
        return scripted_model(name)

    def unload(self, name: str) -> None:
        """Remove a script."""
        self._scripts.pop(name, None)
        self._played.pop(name, None)
        for key in [key for key in self._faulted if key[0] == name]:
            del self._faulted[key]

    def models(self) -> list[str]:
        """Return the names of the models."""
        return list(map(scripted_model, self._scripts))

    def reply(self, chat: ChatRequest) -> ChosenReply:
        """Return the next reply; raise `RequestRefused` without such a script, or after its end."""
        name = script_name(chat.model)
        script = self._scripts.get(name) if name is not None else None
        if name is None or script is None:
            raise model_not_found(chat.model)
        index = _position(chat) if script.by == "position" else self._played[name]
        self._played[name] += 1
        reply = _reply_at(name, script, index)
        if isinstance(reply, ScriptedReply) and reply.fault is not None and reply.fault.times is not None:
            key = (name, _conversation(chat), index if script.by == "position" else 0)
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


def _position(chat: ChatRequest) -> int:
    """Return the number of model replies in the history: 0 for the first request of a conversation."""
    return sum(isinstance(item, AssistantTurn) for item in chat.items)


def _conversation(chat: ChatRequest) -> str:
    """Return what distinguishes conversations that play the same script: the first user text."""
    return next((item.text for item in chat.items if isinstance(item, UserText)), "")


def resolve_reply(reply: ScriptedReply, chat: ChatRequest, *, derived_ids_of: str | None = None) -> Reply:
    """Determine call ids, finish reason and usage of a reply. Without `derived_ids_of`, ids are random."""
    calls = tuple(
        Call(call.id or _call_id(chat, index, derived_ids_of), call.name, _argument_text(call))
        for index, call in enumerate(reply.tool_calls)
    )
    return Reply(
        text_chunks=_chunks(reply.text, reply.chunk_chars),
        reasoning_chunks=_chunks(reply.reasoning, reply.chunk_chars),
        calls=calls,
        finish_reason=reply.finish_reason or ("tool_calls" if calls else "stop"),
        usage=_usage(reply, calls, chat),
    )


def _chunks(text: str, chunk_chars: int | None) -> tuple[str, ...]:
    return words(text) if chunk_chars is None else chunks(text, chunk_chars)


def _argument_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments)


def _call_id(chat: ChatRequest, index: int, derived_ids_of: str | None) -> str:
    if derived_ids_of is None:
        return call_id(chat.dialect)
    origin = dumps([derived_ids_of, _conversation(chat), _position(chat), index])
    return call_id(chat.dialect, hashlib.sha256(origin.encode()).hexdigest())


def _usage(reply: ScriptedReply, calls: tuple[Call, ...], chat: ChatRequest) -> TokenCounts | None:
    match reply.usage:
        case "missing":
            return None
        case "estimated":
            return estimated_usage(chat, len(reply.text) + len(reply.reasoning), calls)
        case stated:
            return TokenCounts(stated.input_tokens, stated.output_tokens, stated.cached_tokens)
