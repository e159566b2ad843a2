"""Converts an AG-UI input to the message of a run, and stored events to the messages of a thread. Pure.

The server has the history of a thread, so only the user's last messages of an input are used. If a client
begins a thread with a history, the earlier messages precede the user's as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from banksman.contracts.errors import BadInput
from banksman.contracts.events import (
    Event,
    MessageCompleted,
    RunFinished,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
)
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonValue
from banksman.gateway.interfaces.agui.models import InputMessage, RunInput

EARLIER = "[Earlier messages of this conversation, as the client sent them:]"
CONTEXT = "[Context from the application:]"
CURRENT = "[The current message:]"
EARLIER_ROLES = frozenset({"developer", "system", "user", "assistant"})
"""The roles of earlier messages that precede the first message of a thread."""
_GAP = "\n\n"
_IMAGE_CHARS = 256 * 1024
SNAPSHOT_CHARS = 4 * 1024 * 1024
"""Size of the newest messages that a snapshot contains. AG-UI's client accepts events of up to 10 MiB."""
AguiMessage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user's last messages of an input: `messages[start:end]`."""

    start: int
    end: int
    parts: tuple[Part, ...]
    left_out: int
    """Number of parts that are neither text nor an image of a permitted size."""


def user_turn(messages: tuple[InputMessage, ...]) -> UserTurn:
    """Return the user's last messages; raise `BadInput` if no message is a user's."""
    end = len(messages)
    while end and messages[end - 1].role != "user":
        end -= 1
    start = end
    while start and messages[start - 1].role == "user":
        start -= 1
    if start == end:
        raise BadInput("messages", None, "a message with the role `user`")
    parts = [part for message in messages[start:end] for part in _parts(message.content)]
    kept = tuple(part for part in parts if part is not None)
    return UserTurn(start, end, kept, len(parts) - len(kept))


def content_of(given: RunInput, turn: UserTurn, *, new: bool) -> Content:
    """Return the content of a run's message.

    Args:
        given: The input.
        turn: Its last user messages.
        new: Whether the server has no history of the thread.
    """
    before: list[str] = []
    if new and (earlier := list(_earlier_texts(given.messages[: turn.start]))):
        before += (EARLIER, *earlier)
    if given.context:
        before += (CONTEXT, *(f"{entry.description}: {entry.value}" for entry in given.context))
    parts = turn.parts
    if before:
        parts = (TextPart(text=_GAP.join((*before, CURRENT))), *parts)
    return text_of(parts) if all(isinstance(part, TextPart) for part in parts) else parts


def _earlier_texts(messages: Iterable[InputMessage]) -> Iterable[str]:
    for message in messages:
        texts = [part.text for part in _parts(message.content) if isinstance(part, TextPart)]
        if message.role in EARLIER_ROLES and any(texts):
            yield f"{message.role}: {_GAP.join(texts)}"


def _parts(content: JsonValue) -> list[Part | None]:
    """Return the parts of a message; None for each part that runs do not support."""
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [_part(part) for part in content] if isinstance(content, list) else []


def _part(part: JsonValue) -> Part | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image", "source": {"type": "url", "value": str(url)}} if len(url) <= _IMAGE_CHARS:
            return ImagePart(url=url)
        case {"type": "image", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}} if (
            len(data) + len(kind) + 16 <= _IMAGE_CHARS
        ):
            return ImagePart(url=f"data:{kind};base64,{data}", media_type=kind)
        case _:
            return None


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
