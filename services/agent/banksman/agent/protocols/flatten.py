"""Calls and results of the history as text, for requests without the vendor's own tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from banksman.agent.protocols.base import MAX_REPLY_CHARS
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall
from banksman.runs.outcome import result_json


def flatten(
    messages: tuple[Message, ...],
    write_call: Callable[[ToolCall], str],
    selects: Callable[[AssistantMessage], bool],
) -> tuple[Message, ...]:
    """Replace the calls of the selected messages by text, and their results by user messages."""
    return tuple(_flattened(messages, write_call, selects))


def prose_call(call: ToolCall) -> str:
    """Return a call as prose, so that a model without tools does not imitate the format of a call."""
    return f"[Called {call.name} with {json.dumps(call.arguments, ensure_ascii=False)}]"


def result_text(message: ToolMessage) -> str:
    """Return a result as the text of a user's message."""
    return f"Tool result for {message.name}:\n{result_json(message.result)}"


def _flattened(
    messages: tuple[Message, ...],
    write_call: Callable[[ToolCall], str],
    selects: Callable[[AssistantMessage], bool],
) -> Iterator[Message]:
    flattened: set[str] = set()
    for message in messages:
        match message:
            case AssistantMessage(calls=calls) if calls and selects(message):
                flattened.update(call.id for call in calls)
                yield _without_calls(message, write_call)
            case ToolMessage(result=result) if result.tool_call_id in flattened:
                text = result_text(message)[:MAX_REPLY_CHARS]
                yield UserMessage(message_id=result.tool_call_id, content=text)
            case _:
                yield message


def _without_calls(message: AssistantMessage, write_call: Callable[[ToolCall], str]) -> AssistantMessage:
    pieces = [message.content or "", *(write_call(call) for call in message.calls)]
    text = "\n\n".join(piece for piece in pieces if piece)
    return message.model_copy(update={"content": text[:MAX_REPLY_CHARS], "calls": ()})
