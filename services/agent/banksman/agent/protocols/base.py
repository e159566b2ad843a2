"""The interface and the types of tool protocols, and what all protocols share."""

from __future__ import annotations

import json
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never

import structlog

from banksman.contracts.events import FinishReason, ModelNotice
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, Usage, UserMessage
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.outcome import message_json

MAX_REPLY_CHARS = 256 * 1024
"""Maximum characters of one stored reply. A longer one is cut and ends with a note."""

MAX_NAME_CHARS = 256

FALLBACK_TEXT = "I encountered an issue and could not finish the answer."
"""The final text if a model stops without text for another reason than that its reply is complete (R99)."""

WITHHELD_TEXT = "I encountered an issue: the model's provider withheld the answer."
"""The same if the vendor's content filter removed all text."""

_log = structlog.get_logger(__name__)

_CUT_NOTE = "\n\n[The reply was cut at its size limit.]"


@dataclass(frozen=True, slots=True)
class LoadedFile:
    media_type: str
    """`image/png`, `image/jpeg` or `application/pdf`."""
    base64: str


LoadFile = Callable[[str, str], Awaitable[LoadedFile | None]]
"""Loads a file of the workspace, given the id of its message and its path; None if it cannot be loaded."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One provider-neutral model request, which a provider's adapter translates."""

    model: str
    """The vendor's name of the model, without `provider:`."""
    system: str
    """The complete system prompt; empty for none."""
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    """Tools to offer through the vendor's API; empty if the model writes calls as text."""
    options: ModelOptions = field(default_factory=ModelOptions)
    conversation_id: str = ""
    """Names the state that a vendor stores per conversation; empty outside a conversation."""
    load: LoadFile | None = None
    """None outside a conversation: its messages refer to no files."""


R = TypeVar("R", "ModelRequest", "ModelReply")


def updated(value: R, **fields: Any) -> R:
    """Return a request or reply with other fields, without a copy if all of them are the present objects."""
    return (
        value
        if all(getattr(value, name) is one for name, one in fields.items())
        else replace(value, **fields)
    )


@dataclass(frozen=True, slots=True)
class RawCall:
    provider_call_id: str | None
    name: str
    arguments: str | JsonObject
    """The arguments as the text that the model wrote, or as an object if the vendor parsed it."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    text: str | None
    calls: tuple[RawCall, ...] = ()
    finish_reason: FinishReason = "stop"
    raw_finish_reason: str = ""
    """The vendor's value, for logs."""
    usage: Usage = field(default_factory=Usage)
    """Tokens without a cost; see `runs.pricing`."""
    provider_state: JsonObject | None = None
    """Data that the vendor expects back with this message; only its adapter reads it."""
    notices: tuple[ModelNotice, ...] = ()
    """What the adapter changed in the request or the reply, for the user."""

    @property
    def is_empty(self) -> bool:
        """True for a reply that ended normally with neither text nor calls; reasoning is no text."""
        return self.finish_reason == "stop" and not self.calls and not (self.text or "").strip()


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call in a reply. It has either arguments or an error."""

    name: str
    """The name as the model wrote it, known or not; at most 256 characters."""
    arguments: JsonObject | None
    arguments_error: str | None = None
    """Why the arguments could not be parsed, written for the model. It becomes the call's result."""
    provider_call_id: str | None = None
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class Final:
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class RequestedCalls:
    text: str | None
    """The text beside the calls; None if there is none."""
    calls: tuple[RequestedCall, ...]
    notices: tuple[ModelNotice, ...] = ()
    """What was repaired in the calls."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The reply attempts a call that cannot be parsed. Nothing of it is executed."""

    error: str
    """The broken rule and its position, for events and logs."""
    position: int
    """Number of characters of the reply before the broken rule."""
    correction: str
    """The correction to send to the model."""


Reading = Final | RequestedCalls | Malformed


class DeltaFilter(typing.Protocol):
    """Selects the text of an unfinished reply that clients may receive."""

    def feed(self, text: str) -> str:
        """Add the next piece of the reply; return the text that may be published now."""
        ...

    def flush(self) -> str:
        """Return the withheld text. Call it only if the complete reply was read as `Final`."""
        ...


class Protocol(typing.Protocol):
    """One format in which a model writes calls. It has no state and does no I/O."""

    def prepare(self, request: ModelRequest) -> ModelRequest:
        """Return the request with tools and history in the form that this protocol sends.

        `request.tools` are the tools that the run offers. `request.messages` is the folded history, which may
        contain calls of both protocols.
        """
        ...

    def read(self, reply: ModelReply, *, attempt: int = 1, tools: Sequence[ToolDefinition] = ()) -> Reading:
        """Classify a reply. Never raises.

        `attempt` counts consecutive malformed replies including this one, and selects the correction. `tools`
        are those that the request offered.
        """
        ...

    def delta_filter(self) -> DeltaFilter:
        """Return a filter for the text of one reply. A reply that is requested again needs a new filter."""
        ...


def truncated_text(text: str) -> str:
    if len(text) <= MAX_REPLY_CHARS:
        return text
    return text[: MAX_REPLY_CHARS - len(_CUT_NOTE)] + _CUT_NOTE


def log_unexpected(reply: ModelReply) -> None:
    _log.warning("unexpected finish reason", finish_reason=reply.raw_finish_reason or reply.finish_reason)


def final_reply(reply: ModelReply) -> Final:
    """Read a reply without calls, for every finish reason (R90, R99)."""
    text, reason = truncated_text(reply.text or ""), reply.finish_reason
    if reason == "stop":
        return Final(text, "stop")
    log_unexpected(reply)
    match reason:
        case "length":
            return Final(text or FALLBACK_TEXT, "length")
        case "content_filter":
            return Final(text or WITHHELD_TEXT, "content_filter")
        case "tool_calls" | "unknown":
            return Final(text or FALLBACK_TEXT, "unknown")
        case _:
            assert_never(reason)


def flatten(
    messages: tuple[Message, ...],
    write_call: Callable[[ToolCall], str],
    selects: Callable[[AssistantMessage], bool],
) -> tuple[Message, ...]:
    """Replace the calls of the selected messages by text, and the results of these calls by user messages."""
    return tuple(_flattened(messages, write_call, selects))


def prose_call(call: ToolCall) -> str:
    """Return a call as prose, so that a model without tools does not imitate the format of a call."""
    return f"[Called {call.name} with {json.dumps(call.arguments, ensure_ascii=False)}]"


def result_text(message: ToolMessage) -> str:
    return f"Tool result for {message.name}:\n{message_json(message)}"


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
