"""Repairs known deviations of chat completion streams on which widely used clients fail.

Events without a deviation are forwarded unchanged. `docs/clients.md` lists the repairs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import from_json

from banksman.contracts.ids import new_id
from banksman.gateway.interfaces.passthrough.sse import data_of, event_of, json_object

Json = dict[str, Any]

MAX_CHOICES, MAX_CALLS = 128, 1000
"""Maximum choices of a stream and calls of a choice; further ones pass unchanged, which bounds the state."""
MAX_ARGUMENT_CHARS = 1024 * 1024

_EVENT = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)


@dataclass
class _Call:
    id: str
    name: str
    arguments: str = ""

    @property
    def complete(self) -> bool:
        return json_object(self.arguments) is not None


@dataclass
class _Choice:
    has_role: bool = False
    finished: bool = False
    calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    last_call: int | None = None

    def index_of(self, id: object, name: object, used: set[int]) -> int:
        """Return the index for a fragment without one; `used` are those of the same delta's other calls."""
        known = next((index for index, call in self.calls.items() if id and call.id == id), None)
        if known is not None:
            return known
        new = max(self.calls, default=-1) + 1
        last = self.last_call
        if id or last is None or last in used:
            return new
        call = self.calls[last]
        return new if name and (name != call.name or call.complete) else last


class ChatNormaliser:
    def __init__(self, model: str) -> None:
        self._head: Json = {"object": "chat.completion.chunk", "model": model}
        self._choices: dict[int, _Choice] = {}
        self._held = b""
        """A usage chunk that waits for the next event: a missing finish reason belongs before it."""

    def repaired(self, events: bytes) -> bytes:
        return b"".join(map(self._event, _divided(events)))

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None:
            return event
        held, self._held = self._held, b""
        if data.strip() == b"[DONE]":
            return self._finish() + held + event
        try:
            value: Any = from_json(data)
        except ValueError:
            value = None if data.lstrip().startswith((b"{", b"[")) else data.decode("utf-8", "replace")
        if isinstance(value, str):
            return held + event_of({"error": _error(value)})
        if not isinstance(value, dict):
            return held + event
        chunk = cast(Json, value)
        repaired = self._chunk(chunk)
        written = event if repaired is chunk else event_of(repaired)
        if repaired.get("usage") and not repaired.get("choices") and self._unfinished:
            self._held = written
            return held
        return held + written

    @property
    def _unfinished(self) -> list[tuple[int, _Choice]]:
        return [(index, choice) for index, choice in self._choices.items() if not choice.finished]

    def _finish(self) -> bytes:
        chunks = b""
        for index, choice in self._unfinished:
            choice.finished = True
            reason = "tool_calls" if choice.calls else "stop"
            ending: Json = {"index": index, "delta": {}, "finish_reason": reason}
            chunks += event_of(self._chunk({"choices": [ending]}))
        return chunks

    def _chunk(self, chunk: Json) -> Json:
        if "error" in chunk and "choices" not in chunk:
            return _with_error_object(chunk)
        repairs: Json = {}
        for name in ("id", "object", "created", "model"):
            if chunk.get(name) is None:
                repairs[name] = self._head_field(name)
            else:
                self._head.setdefault(name, chunk[name])
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            repairs["choices"] = []
        else:
            given = cast(list[Any], choices)
            repaired = [self._choice(position, choice) for position, choice in enumerate(given)]
            if any(before is not after for before, after in zip(given, repaired, strict=True)):
                repairs["choices"] = repaired
        return {**chunk, **repairs} if repairs else chunk

    def _head_field(self, name: str) -> Any:
        if name not in self._head:
            self._head[name] = new_id("chatcmpl-") if name == "id" else int(time.time())
        return self._head[name]

    def _choice(self, position: int, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        choice = cast(Json, value)
        if choice.get("index") is None:
            choice = {**choice, "index": position}
        index = choice["index"]
        if not isinstance(index, int) or (index not in self._choices and len(self._choices) >= MAX_CHOICES):
            return choice
        state = self._choices.setdefault(index, _Choice())
        state.finished = state.finished or bool(choice.get("finish_reason"))
        delta = choice.get("delta")
        repaired = self._delta(state, {} if delta is None else delta)
        return choice if repaired is delta else {**choice, "delta": repaired}

    def _delta(self, state: _Choice, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        delta = cast(Json, value)
        repairs: Json = {}
        if not state.has_role:
            state.has_role = True
            if not delta.get("role"):
                repairs["role"] = "assistant"
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            given, used = cast(list[Any], calls), set[int]()
            repaired = [_call(state, call, used) for call in given]
            if any(before is not after for before, after in zip(given, repaired, strict=True)):
                repairs["tool_calls"] = repaired
        return {**delta, **repairs} if repairs else delta


def _divided(events: bytes) -> list[bytes]:
    if b"\r" in events:
        return _EVENT.findall(events)
    *complete, rest = events.split(b"\n\n")
    return [event + b"\n\n" for event in complete] + ([rest] if rest else [])


def _call(state: _Choice, value: Any, used: set[int]) -> Any:
    if not isinstance(value, dict):
        return value
    given = cast(Json, value)
    if given.get("type") not in (None, "function"):
        return given
    function: Json = given["function"] if isinstance(given.get("function"), dict) else {}
    name, index = function.get("name"), given.get("index")
    if not isinstance(index, int):
        index = state.index_of(given.get("id"), name, used)
    if index not in state.calls and len(state.calls) >= MAX_CALLS:
        return given
    used.add(index)
    state.last_call = index
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
    call = state.calls.get(index)
    if call is None:
        state.calls[index] = call = _Call(given.get("id") or new_id("call_"), name or "")
        repaired = {**given, "index": index, "id": call.id, "type": "function"}
        repaired["function"] = {**function, "name": call.name, "arguments": text}
    else:
        known = {"id": call.id, "type": None}
        repaired = {**_without(given, known), "index": index}
        repaired["function"] = {**_without(function, {"name": call.name}), "arguments": text}
        call.name += repaired["function"].get("name", "")
    if len(call.arguments) < MAX_ARGUMENT_CHARS:
        call.arguments += text
    return given if repaired == given else repaired


def _without(given: Json, known: Mapping[str, object]) -> Json:
    """Return the members except those of `known` that are null or repeat the known value."""
    return {
        name: value for name, value in given.items() if name not in known or value not in (None, known[name])
    }


def normalised_error(body: bytes) -> bytes:
    """Return the body of a refusal; an error that is a bare string becomes OpenAI's error object."""
    value = json_object(body) or {}
    repaired = _with_error_object(value)
    return body if repaired is value else json.dumps(repaired, ensure_ascii=False).encode()


def _with_error_object(value: Json) -> Json:
    error = value.get("error")
    return {**value, "error": _error(error)} if isinstance(error, str) else value


def _error(message: str) -> Json:
    return {"message": message[:10_000], "type": "server_error", "param": None, "code": None}
