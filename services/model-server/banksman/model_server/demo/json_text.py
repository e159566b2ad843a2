"""The tool protocol in which a model writes each call as one JSON object in its text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from banksman.model_server.chat import AssistantTurn, Call, ChatRequest, Item, ToolOutput, UserText
from banksman.model_server.json_values import Json, as_object, dumps, loads_object

_RESULT = re.compile(r"Tool result for (?P<name>[\w-]+):\s*(?P<text>.*)", re.DOTALL)


def uses_json_text(chat: ChatRequest) -> bool:
    """Whether the request offers no native tools, but its system prompt explains the text protocol."""
    return not chat.tools and '"tool"' in chat.system and '"terminate"' in chat.system


def named_in_prompt(chat: ChatRequest) -> frozenset[str]:
    """Every word of the system prompt: the names of its tools are among them."""
    return frozenset(re.findall(r"[\w-]+", chat.system))


def call_text(tool: str, parameters: Mapping[str, Any]) -> str:
    """The text by which a model makes a call and asks for its result."""
    return dumps({"tool": tool, "parameters": dict(parameters), "terminate": False})


def in_neutral_words(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The history with calls and results where it holds their texts."""
    neutral: list[Item] = []
    open_call: Call | None = None
    for index, item in enumerate(items):
        match item:
            case AssistantTurn(text):
                open_call = _call(text, index)
                neutral.append(item if open_call is None else AssistantTurn("", (open_call,)))
            case UserText(text) if open_call is not None and (result := _RESULT.match(text)):
                neutral.append(ToolOutput(open_call.id, result["text"]))
                open_call = None
            case _:
                neutral.append(item)
    return tuple(neutral)


def _call(text: str, index: int) -> Call | None:
    written: Json = loads_object(text[text.find("{") : text.rfind("}") + 1]) or {}
    tool, parameters = written.get("tool"), as_object(written.get("parameters"))
    if not isinstance(tool, str) or parameters is None:
        return None
    return Call(f"text_{index}", tool, dumps(parameters))
