"""Histories that another model, an interruption or a change of settings leaves behind."""

from __future__ import annotations

from typing import Any

from tools.model_features import red_square

from banksman.contracts.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, ToolResult, failed


def user(content: Any, number: int = 1) -> UserMessage:
    return UserMessage(message_id=f"u{number}", content=content)


def reply(content: str | None, *calls: ToolCall, number: int = 1, **fields: Any) -> AssistantMessage:
    return AssistantMessage(message_id=f"a{number}", content=content, calls=calls, **fields)


def call(name: str, number: int, vendor_id: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"k{number}", name=name, arguments=arguments, provider_call_id=vendor_id)


def result(one: ToolCall, **content: Any) -> ToolMessage:
    return ToolMessage(
        name=one.name, result=ToolResult(tool_call_id=one.id, content={"success": True, **content})
    )


ADD = call("add", 1, "call_aEX/4:2+very-long-" + "x" * 60, a=1, b=1)
AGAIN = call("add", 2, "toolu_01A", a=2, b=2)
SAME_ID = call("add", 3, "toolu_01A", a=3, b=3)
UNKNOWN = call("no such tool!", 4, "", ö=[None])

FOREIGN_STATE: dict[str, Any] = {
    "provider": "another",
    "provider_state": {
        "thinking": [{"type": "thinking", "thinking": "Secret.", "signature": "SECRET"}],
        "reasoning_content": "Secret.",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "SECRET"}],
    },
}

HISTORIES: dict[str, tuple[Message, ...]] = {
    "another model called tools": (
        user("go"),
        reply("I add.", ADD, AGAIN, **FOREIGN_STATE),
        result(ADD, sum=2),
        result(AGAIN, sum=4),
        reply("2 and 4", number=2, **FOREIGN_STATE),
    ),
    "a reply without text": (user("go"), reply(None, ADD), result(ADD, sum=2), reply("2", number=2)),
    "two calls with one id": (
        user("go"),
        reply(None, AGAIN, number=1),
        result(AGAIN, sum=4),
        reply(None, SAME_ID, number=2),
        result(SAME_ID, sum=6),
        reply("done", number=3),
    ),
    "the user interrupts after the results": (user("go"), reply(None, ADD), result(ADD, sum=2)),
    "a cancelled run": (user("go"), reply("I be", number=1), user("stop", 2)),
    "a lost result": (user("go"), reply(None, ADD, AGAIN), result(ADD, sum=2)),
    "failed calls": (
        user("go"),
        reply(None, UNKNOWN, ADD),
        ToolMessage(name=UNKNOWN.name, result=failed(UNKNOWN.id, "unknown_tool", "There is no such tool.")),
        ToolMessage(name="add", result=failed(ADD.id, "denied", "The user rejected it.")),
        reply("I stop.", number=2),
    ),
    "blank messages": (user(" "), reply(""), user((), 2), reply(" \n", number=2)),
    "images": (
        user(
            (
                TextPart(text="Look."),
                ImagePart(url=red_square()),
                ImagePart(url="https://example.org/cat.jpeg"),
            )
        ),
        reply("I looked."),
    ),
    "calls as text": (
        user("go"),
        reply("I add.", ADD, protocol="json_text"),
        result(ADD, sum=2),
        reply("2", number=2, protocol="json_text"),
    ),
}
