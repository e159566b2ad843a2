"""Calls and results of the history told as text, for requests that offer no tools in the vendor's way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from banksman.agent.protocols.base import MAX_REPLY_CHARS
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.tools import ToolCall
from banksman.runs.rendering import result_json


def flatten(
    messages: tuple[Message, ...],
    write_call: Callable[[ToolCall], str],
    wanted: Callable[[AssistantMessage], bool],
) -> tuple[Message, ...]:
    """Replace the calls of the wanted messages by text, and their results by messages of the user."""
    return tuple(_flattened(messages, write_call, wanted))


def prose_call(call: ToolCall) -> str:
    """A call in words that read like no call, so that a model without tools does not imitate them."""
    return f"[Called {call.name} with {json.dumps(call.arguments, ensure_ascii=False)}]"


def result_text(message: ToolMessage) -> str:
    """A result as the user's message that tells it."""
    return f"Tool result for {message.name}:\n{result_json(message.result)}"


def _flattened(
    messages: tuple[Message, ...],
    write_call: Callable[[ToolCall], str],
    wanted: Callable[[AssistantMessage], bool],
) -> Iterator[Message]:
    told: set[str] = set()
    for message in messages:
        match message:
            case AssistantMessage(calls=calls) if calls and wanted(message):
                told.update(call.id for call in calls)
                yield _without_calls(message, write_call)
            case ToolMessage(result=result) if result.tool_call_id in told:
                text = result_text(message)[:MAX_REPLY_CHARS]
                yield UserMessage(message_id=result.tool_call_id, content=text)
            case _:
                yield message


def _without_calls(message: AssistantMessage, write_call: Callable[[ToolCall], str]) -> AssistantMessage:
    pieces = [message.content or "", *(write_call(call) for call in message.calls)]
    text = "\n\n".join(piece for piece in pieces if piece)
    return message.model_copy(update={"content": text[:MAX_REPLY_CHARS], "calls": ()})
