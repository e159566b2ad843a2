from __future__ import annotations

from dataclasses import dataclass

from banksman.model_server.chat import AssistantTurn, Call, ChatRequest, Item, ToolOutput, UserText
from banksman.model_server.demo.json_text import in_neutral_words, named_in_prompt, uses_json_text
from banksman.model_server.json_values import loads_object


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a conversation stands, whatever the tool protocol."""

    request: str
    """The last thing the user said."""
    rounds: tuple[tuple[tuple[Call, ToolOutput], ...], ...]
    """The calls made for that request so far, reply by reply, each with its result."""
    last_path: str | None
    """The file that an earlier request wrote or read last."""
    json_text: bool
    """Whether calls are written as text."""
    tools: frozenset[str]
    """Names of the tools that may be called; where a prompt describes them, each of its words."""
    parallel: bool
    """Whether one reply may make several calls."""


def read_scene(chat: ChatRequest) -> Scene:
    """Read everything the demo model needs from the request alone."""
    json_text = uses_json_text(chat)
    items = in_neutral_words(chat.items) if json_text else chat.items
    begin = _request_start(items)
    end = next((at for at in range(begin, len(items)) if not isinstance(items[at], UserText)), len(items))
    request = "\n".join(item.text for item in items[begin:end] if isinstance(item, UserText))
    return Scene(
        request=request,
        rounds=_rounds(items[end:]),
        last_path=_last_path(items[:begin]),
        json_text=json_text,
        tools=named_in_prompt(chat) if json_text else frozenset(chat.tools),
        parallel=chat.parallel_calls and not json_text,
    )


def _request_start(items: tuple[Item, ...]) -> int:
    at = len(items)
    while at > 0 and not isinstance(items[at - 1], UserText):
        at -= 1
    while at > 0 and isinstance(items[at - 1], UserText):
        at -= 1
    return at


def _rounds(items: tuple[Item, ...]) -> tuple[tuple[tuple[Call, ToolOutput], ...], ...]:
    outputs = {item.call_id: item for item in items if isinstance(item, ToolOutput)}
    turns = [item.calls for item in items if isinstance(item, AssistantTurn) and item.calls]
    return tuple(tuple((call, outputs[call.id]) for call in calls if call.id in outputs) for calls in turns)


def _last_path(items: tuple[Item, ...]) -> str | None:
    calls = [call for item in items if isinstance(item, AssistantTurn) for call in item.calls]
    paths = [(loads_object(call.arguments) or {}).get("path") for call in calls]
    return next((path for path in reversed(paths) if isinstance(path, str)), None)
