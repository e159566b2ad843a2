"""The protocol in which a call is one strict JSON object in the text of a reply.

A reply attempts a call if it contains an object with the key `tool` at its top level and outside a nested
code fence, or if it starts with `{` (after white space and a fence) and contains the key. One valid object is
the call, with or without prose around it. A reply with several objects, an invalid object or an object that
breaks a rule of the format is malformed. Unknown keys are refused too: a call without them would not be the
call that the model wrote. A reply that starts with `{` and spells the key differently, such as `'tool'`,
`tool`, `"Tool"` or `"tool_name"`, is malformed as well.

An object with a syntax error is an attempt if the key precedes the error at any depth. A valid object inside
it is not extracted, because the intended whole is unknown. The key must be written literally, without
escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from banksman.agent.protocols.base import (
    MAX_NAME_CHARS,
    MAX_REPLY_CHARS,
    DeltaFilter,
    Malformed,
    ModelReply,
    ModelRequest,
    Reading,
    RequestedCall,
    RequestedCalls,
    final_reply,
    flatten,
)
from banksman.agent.protocols.objects import QUOTED_KEY, Broken, CallFilter, Closed, attempts, next_object
from banksman.agent.protocols.repairs import repaired
from banksman.agent.protocols.structured import instructed
from banksman.contracts.errors import BadInput
from banksman.contracts.tools import ToolCall, ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, strict_json
from banksman.prompting.templates import PARAMETERS_KEY, TERMINATE_KEY, TOOL_KEY, correction

_LEADING_BRACE = re.compile(r"[\s\ufeff]*+(?:(?:`{3,}+|~{3,}+)[^\S\n]*+[\w+.-]*+\s*+)?\{")
_OPENING_FENCE = re.compile(r"(?:\A|\n)[ \t]*+(?:`{3,}+|~{3,}+)[^\n]*+\s*\Z")
_CLOSING_FENCE = re.compile(r"\A\s*+(?:`{3,}+|~{3,}+)[ \t]*+(?=\n|\Z)")
_MISWRITTEN_KEY = re.compile(
    rf"""[{{,]\s*+(?P<key>\\?["'`\u2018-\u201d]?{TOOL_KEY}(?:_?name)?\\?["'`\u2018-\u201d]?)\s*+:""",
    re.IGNORECASE,
)
"""The key in another spelling: with other quotes or none, in another case, or as `tool_name`."""
_FIELDS = (TOOL_KEY, PARAMETERS_KEY, TERMINATE_KEY)
_EXCERPT_CHARS = 24


class JsonText:
    """Calls are text. Only the prompt describes the tools."""

    def prepare(self, request: ModelRequest) -> ModelRequest:
        """Write each call of the history as its object and each result as a message of the user (R2).

        The prompt states a response schema: a vendor that enforces it would exclude calls.
        """
        messages = flatten(request.messages, written_call, lambda _: True)
        return replace(instructed(request), tools=(), messages=messages)

    def read(self, reply: ModelReply, *, attempt: int = 1, tools: Sequence[ToolDefinition] = ()) -> Reading:
        """See `Protocol.read` (R9, R10, R11)."""
        text = reply.text or ""
        try:
            found = _find_call(text)
        except _MalformedCall as fault:
            if reply.finish_reason == "content_filter":
                return final_reply(replace(reply, text=None))
            return _malformed(text, fault, reply, attempt)
        if found is None:
            return final_reply(reply)
        if reply.finish_reason == "content_filter":
            return final_reply(replace(reply, text=None))
        call, start, end = found
        call, notices = repaired(call, {tool.name: tool for tool in tools})
        return RequestedCalls(_prose(text, start, end), (call,), notices)

    def delta_filter(self) -> DeltaFilter:
        return CallFilter()


def written_call(call: ToolCall) -> str:
    return json.dumps(
        {TOOL_KEY: call.name, PARAMETERS_KEY: call.arguments, TERMINATE_KEY: call.terminate},
        ensure_ascii=False,
    )


class _MalformedCall(Exception):
    def __init__(self, rule: str, position: int) -> None:
        self.rule = rule
        self.position = position
        super().__init__(rule)


def _malformed(text: str, fault: _MalformedCall, reply: ModelReply, attempt: int) -> Malformed:
    rule = f"{fault.rule}, at {_position_text(text, fault.position)}"
    if reply.finish_reason == "length":
        rule += " (the reply was cut off at the limit of output tokens; write a shorter call)"
    return Malformed(rule, fault.position, correction(rule, attempt))


def _position_text(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    near = text[max(0, position - _EXCERPT_CHARS) : position + _EXCERPT_CHARS]
    return f"line {line}, column {column} (near {near!r})" if near else f"line {line}, column {column}"


def _find_call(text: str) -> tuple[RequestedCall, int, int] | None:
    """Return the one call of a text with its start and end; None if the text attempts no call."""
    found = list(islice(attempts(text), 2))
    if not found:
        if QUOTED_KEY in text and _LEADING_BRACE.match(text):
            raise _missing_object(text)
        _check_keys(text)
        return None
    if len(found) > 1:
        raise _MalformedCall("the reply contains more than one call", found[1].start)
    if len(text) > MAX_REPLY_CHARS:
        raise _MalformedCall(f"the reply is longer than {MAX_REPLY_CHARS:,} characters", found[0].start)
    match found[0]:
        case Closed(start=start, resume=end):
            return _read_call(text, start, end), start, end
        case Broken(position=position, rule=rule):
            raise _MalformedCall(f"it is not valid JSON: {rule}", position)


def _check_keys(text: str) -> None:
    """Refuse a reply that is one object with a misspelled key: no user expects it as a final reply."""
    leading = _LEADING_BRACE.match(text)
    found = _MISWRITTEN_KEY.search(text, leading.end() - 1) if leading else None
    if found is not None:
        names = f'"{TOOL_KEY}", "{PARAMETERS_KEY}" and "{TERMINATE_KEY}"'
        raise _MalformedCall(f"its keys must be {names}, in lower case and double quotes", found.start("key"))


def _missing_object(text: str) -> _MalformedCall:
    start = text.index("{")
    first = next_object(text, start)
    if isinstance(first, Broken) and first.start == start:
        return _MalformedCall(f"it is not valid JSON: {first.rule}", first.position)
    return _MalformedCall(f'it contains no JSON object with "{TOOL_KEY}" at its top level', start)


def _read_call(text: str, start: int, end: int) -> RequestedCall:
    try:
        value = strict_json(text[start:end], what="the object")
    except BadInput as error:
        raise _MalformedCall(f"it must be {error.expected}", start) from error
    if not isinstance(value, dict):
        raise _MalformedCall("the call is not an object", start)
    fields = _Fields(text, start, end, value)
    fields.check_names()
    return RequestedCall(name=fields.name(), arguments=fields.parameters(), terminate=fields.terminate())


@dataclass(frozen=True, slots=True)
class _Fields:
    text: str
    start: int
    end: int
    value: JsonObject

    def check_names(self) -> None:
        for name in _FIELDS:
            if name not in self.value:
                raise _MalformedCall(f'the required field "{name}" is missing', self.start)
        for name in self.value:
            if name not in _FIELDS:
                raise self._wrong(name, f'the field "{name[:64]}" is not allowed')

    def name(self) -> str:
        value = self.value[TOOL_KEY]
        if isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS:
            return value
        raise self._wrong(TOOL_KEY, f'"{TOOL_KEY}" must be a string of 1 to {MAX_NAME_CHARS} characters')

    def parameters(self) -> JsonObject:
        value = self.value[PARAMETERS_KEY]
        if isinstance(value, dict):
            return value
        kind = "JSON written inside a string" if isinstance(value, str) else _kind(value)
        raise self._wrong(PARAMETERS_KEY, f'"{PARAMETERS_KEY}" must be an object, not {kind}')

    def terminate(self) -> bool:
        value = self.value[TERMINATE_KEY]
        if isinstance(value, bool):
            return value
        raise self._wrong(
            TERMINATE_KEY, f'"{TERMINATE_KEY}" must be true or false without quotes, not {_kind(value)}'
        )

    def _wrong(self, name: str, rule: str) -> _MalformedCall:
        found = self.text.find(json.dumps(name, ensure_ascii=False), self.start, self.end)
        return _MalformedCall(rule, max(found, self.start))


def _kind(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an array"
        case dict():
            return "an object"


def _prose(text: str, start: int, end: int) -> str | None:
    before = _OPENING_FENCE.sub("", text[:start]).strip()
    after = _CLOSING_FENCE.sub("", text[end:]).strip()
    return "\n\n".join(piece for piece in (before, after) if piece) or None
