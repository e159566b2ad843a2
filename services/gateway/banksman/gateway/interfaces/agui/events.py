"""Builds the AG-UI events of a run. Pure.

https://docs.ag-ui.com/spec/1.0/events
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

PROTOCOL_VERSION = "1.0"
"""https://docs.ag-ui.com/spec/1.0/basic/versioning"""
OWN = "banksman"
"""The key of Banksman's own fields in a state and in metadata."""

AguiEvent = dict[str, Any]


def snapshot(messages: list[dict[str, Any]]) -> AguiEvent:
    """Return the event that replaces the client's messages."""
    return {"type": "MESSAGES_SNAPSHOT", "messages": messages, "timestamp": now_ms()}


def warning(text: str) -> AguiEvent:
    """Return the event that reports a part of the input that has no effect."""
    return custom(f"{OWN}.warning", {"message": text})


def tool_result(data: dict[str, Any]) -> AguiEvent:
    """Return the event of a call's result.

    Args:
        data: The data of its `tool_call.completed`.
    """
    details = {name: value for name, value in data.items() if name != "content"}
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{data['tool_call_id']}-result",
        "toolCallId": data["tool_call_id"],
        "content": json.dumps(data["content"], ensure_ascii=False),
        "role": "tool",
        "metadata": {OWN: details},
    }


def custom(name: str, value: Any) -> AguiEvent:
    """Return a `CUSTOM` event, to which the protocol gives no meaning."""
    return {"type": "CUSTOM", "name": name, "value": value}


def whole_message(message_id: str, text: str, role: str = "assistant") -> list[AguiEvent]:
    return [
        message_start(message_id, role),
        fragment("TEXT_MESSAGE_CONTENT", message_id, text),
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def message_start(message_id: str, role: str = "assistant") -> AguiEvent:
    return {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role}


def fragment(kind: str, message_id: str, text: str) -> AguiEvent:
    return {"type": kind, "messageId": message_id, "delta": text}


def usage_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the usage of a run; empty if no model was requested."""
    usage = data["usage"]
    read, written = usage["input_tokens"], usage["output_tokens"]
    if not read and not written:
        return []
    provider, _, model = data["model"].partition(":")
    counts: dict[str, Any] = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    if usage["cached_tokens"]:
        counts["cachedInputTokens"] = usage["cached_tokens"]
    return [{"provider": provider, "model": model, **counts}]


def plain_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n\n".join(part.get("text", "") for part in content)
    return content or ""


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
