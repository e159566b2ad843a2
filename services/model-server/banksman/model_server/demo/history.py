"""Reads a conversation for the demo model, with native calls or calls written as JSON text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from banksman.model_server.chat import AssistantTurn, Call, Item, ToolOutput, UserText, ValidatedRequest
from banksman.model_server.json_values import as_object, dumps, loads_object

_CONTEXT = re.compile(r"<([a-z]+(?:[-_][a-z]+)+)>")
"""Begins a block that a coding agent adds to the user's message, such as `<system-reminder>`."""
_RESULT = re.compile(r"Tool result for [\w-]+:\s*(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DemoConversation:
    request: str
    """The user's last message."""
    rounds: tuple[tuple[ToolOutput, ...], ...]
    """Results of the calls for that message, one tuple for each reply."""
    last_path: str
    """The file that an earlier message wrote or read last; empty if there is none."""
    json_text: bool
    """Whether calls are written as JSON text (the protocol of the system prompt) instead of native calls."""
    tools: frozenset[str]
    """Names of the offered tools. With `json_text`, all words of the prompt that describes them."""
    parallel: bool
    """Whether one reply may contain several calls."""


def read_history(chat: ValidatedRequest) -> DemoConversation:
    json_text = not chat.tools and '"tool"' in chat.system and '"terminate"' in chat.system
    items = _with_native_calls(chat.items) if json_text else chat.items
    begin, end = _last_request(items)
    return DemoConversation(
        request=_without_context(
            "\n".join(one.text for one in items[begin:end] if isinstance(one, UserText))
        ),
        rounds=_rounds(items[end:]),
        last_path=_last_path(items[:begin]),
        json_text=json_text,
        tools=frozenset(re.findall(r"[\w-]+", chat.system)) if json_text else frozenset(chat.tools),
        parallel=chat.parallel_calls and not json_text,
    )


def _without_context(text: str) -> str:
    """Return a text without the blocks that an agent added; the whole text if nothing else remains."""
    own: list[str] = []
    at = 0
    while (opening := _CONTEXT.search(text, at)) is not None:
        closing = f"</{opening[1]}>"
        end = text.find(closing, opening.end())
        if end < 0:
            break
        own.append(text[at : opening.start()])
        at = end + len(closing)
    return "".join((*own, text[at:])).strip() or text


def _with_native_calls(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Replace calls and results in text form by native ones."""
    native: list[Item] = []
    call: Call | None = None
    for index, item in enumerate(items):
        match item:
            case AssistantTurn(text):
                call = _call(text, index)
                native.append(item if call is None else AssistantTurn("", (call,)))
            case UserText(text) if call is not None and (result := _RESULT.match(text)):
                native.append(ToolOutput(call.id, result["text"]))
                call = None
            case _:
                native.append(item)
    return tuple(native)


def _call(text: str, index: int) -> Call | None:
    written = loads_object(text[text.find("{") : text.rfind("}") + 1]) or {}
    tool, parameters = written.get("tool"), as_object(written.get("parameters"))
    return (
        Call(f"text_{index}", tool, dumps(parameters))
        if isinstance(tool, str) and parameters is not None
        else None
    )


def _last_request(items: tuple[Item, ...]) -> tuple[int, int]:
    """Return the start and end index of the last block of user texts."""
    end = max((at + 1 for at, item in enumerate(items) if isinstance(item, UserText)), default=0)
    begin = end
    while begin > 0 and isinstance(items[begin - 1], UserText):
        begin -= 1
    return begin, end


def _rounds(items: tuple[Item, ...]) -> tuple[tuple[ToolOutput, ...], ...]:
    outputs = {item.call_id: item for item in items if isinstance(item, ToolOutput)}
    turns = [item.calls for item in items if isinstance(item, AssistantTurn) and item.calls]
    return tuple(tuple(outputs[call.id] for call in calls if call.id in outputs) for calls in turns)


def _last_path(items: tuple[Item, ...]) -> str:
    calls = [call for item in items if isinstance(item, AssistantTurn) for call in item.calls]
    paths = [(loads_object(call.arguments) or {}).get("path") for call in calls]
    return next((path for path in reversed(paths) if isinstance(path, str)), "")
