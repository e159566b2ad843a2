"""Converts the stored events of a conversation to the messages of an AG-UI thread. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from banksman.contracts.events import (
    Event,
    MessageCompleted,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import text_of
from banksman.contracts.tools import ToolCall, ToolResult

SNAPSHOT_CHARS = 4 * 1024 * 1024
"""Size of the newest messages that a snapshot contains. AG-UI's client accepts events of up to 10 MiB."""

AguiMessage = dict[str, Any]


def messages_of(events: Iterable[Event]) -> list[AguiMessage]:
    """Return the messages of a thread, oldest first: the newest ones that fit in `SNAPSHOT_CHARS`."""
    messages: list[AguiMessage] = []
    last: AguiMessage | None = None
    for event in events:
        match event.data:
            case RunStarted(message_id=id, message=content):
                messages.append({"id": id, "role": "user", "content": text_of(content)})
            case MessageCompleted(role=role, message_id=id, content=content):
                last = {"id": id, "role": role, "content": text_of(content or "")}
                messages.append(last)
            case ToolCallRequested(call=call):
                if last is None or last["role"] != "assistant":
                    last = {"id": f"{call.id}-message", "role": "assistant"}
                    messages.append(last)
                last.setdefault("toolCalls", []).append(_call(call))
            case ToolCallCompleted(result=result):
                messages.append(_result(result))
            case RunFinished(content=content) if event.run_id and content and _is_new(content, last):
                messages.append({"id": f"{event.run_id}-outcome", "role": "assistant", "content": content})
            case _:
                continue
    return _newest(messages)


def _is_new(content: str, last: AguiMessage | None) -> bool:
    return last is None or content != last.get("content")


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _result(result: ToolResult) -> AguiMessage:
    message: AguiMessage = {
        "id": f"{result.tool_call_id}-result",
        "role": "tool",
        "toolCallId": result.tool_call_id,
        "content": json.dumps(result.content, ensure_ascii=False),
    }
    return {**message, "error": result.error_kind} if result.is_error and result.error_kind else message


def _newest(messages: list[AguiMessage]) -> list[AguiMessage]:
    size, first = 0, len(messages)
    while first and (size := size + len(json.dumps(messages[first - 1]))) <= SNAPSHOT_CHARS:
        first -= 1
    return messages[first:]
