"""The history as the vendors demand it: each call of a reply has exactly one result, directly behind it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall, failed
from banksman.contracts.wire import JsonObject

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class CallWithResult:
    """A call and its result, as they are sent."""

    id: str
    """The vendor's id where it has one that is valid and not yet used in this request, else ours."""
    name: str
    """The tool's name with what the vendors refuse replaced, as a model may write any."""
    arguments: JsonObject
    answer: ToolMessage


@dataclass(frozen=True, slots=True)
class Exchange:
    """A reply of the model and the results of all its calls, in their order."""

    said: AssistantMessage
    calls: tuple[CallWithResult, ...]


def exchanges(messages: Iterable[Message]) -> list[UserMessage | Exchange]:
    """Pair calls and results.

    A result without its call is left out, of two results the first counts, and a call without one is told as
    `unknown_outcome`: the log never leads there between iterations, but a vendor refuses the whole request.
    """
    listed = list(messages)
    results: dict[str, ToolMessage] = {}
    for message in listed:
        if isinstance(message, ToolMessage):
            results.setdefault(message.result.tool_call_id, message)
    used: set[str] = set()
    paired: list[UserMessage | Exchange] = []
    for message in listed:
        match message:
            case UserMessage():
                paired.append(message)
            case AssistantMessage():
                calls = tuple(_answered(call, results, used) for call in message.calls)
                paired.append(Exchange(message, calls))
            case ToolMessage():
                pass
    return paired


def _answered(call: ToolCall, results: dict[str, ToolMessage], used: set[str]) -> CallWithResult:
    answer = results.get(call.id) or _lost(call)
    name = _NOT_IN_NAMES.sub("_", call.name)[:_MAX_NAME_CHARS] or "unnamed"
    return CallWithResult(_wire_id(call, used), name, call.arguments, answer)


def _lost(call: ToolCall) -> ToolMessage:
    result = failed(call.id, "unknown_outcome", "The result of this call is not known.")
    return ToolMessage(name=call.name, result=result)


def _wire_id(call: ToolCall, used: set[str]) -> str:
    theirs = call.provider_call_id or ""
    chosen = theirs if _ID.fullmatch(theirs) and theirs not in used else call.id
    number = 1
    while chosen in used:
        number += 1
        chosen = f"{call.id[:56]}-{number}"
    used.add(chosen)
    return chosen
