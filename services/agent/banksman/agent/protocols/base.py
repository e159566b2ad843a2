"""What the loop asks of a tool protocol, and the words between a protocol and a provider."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from banksman.contracts.assistants import ModelOptions
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import Message, Usage
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject

MAX_REPLY_CHARS = 256 * 1024
"""Characters of one reply that are kept, the size of a stored text; the rest is cut and said to be."""

MAX_NAME_CHARS = 256
"""Characters of a tool's name that the log keeps."""

FALLBACK_TEXT = "I encountered an issue and could not finish the answer."
"""The answer when a model stops for an unknown reason without a word."""

WITHHELD_TEXT = "The model's provider withheld the answer."
"""The answer when the vendor's content filter left nothing."""

_log = structlog.get_logger(__name__)

_CUT_NOTE = "\n\n[The reply was cut at its size limit.]"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model, in our words; a provider's adapter translates it."""

    model: str
    """The vendor's name of the model, without `provider:`."""
    system: str
    """The finished system prompt; empty for none."""
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    """The tools to offer through the vendor's own interface; none when calls are written as text."""
    options: ModelOptions = field(default_factory=ModelOptions)
    conversation_id: str = ""
    """Names what a vendor keeps of the conversation; empty outside of one."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as the vendor delivered it."""

    provider_call_id: str | None
    name: str
    arguments: str | JsonObject
    """The text of the arguments as the model wrote it, or an object where the vendor parsed it."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One whole reply of a model."""

    text: str | None
    calls: tuple[RawCall, ...] = ()
    finish_reason: FinishReason = "stop"
    raw_finish_reason: str = ""
    """The vendor's own word, for the log."""
    usage: Usage = field(default_factory=Usage)
    """Tokens only; the cost is computed from the price table."""
    provider_state: JsonObject | None = None
    """What the vendor wants back with this message; opaque to everyone but its adapter."""


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call that was read off a reply. It has arguments or an error, never both."""

    name: str
    """As the model wrote it, known or not, at most 256 characters."""
    arguments: JsonObject | None
    arguments_error: str | None = None
    """Why the arguments could not be read, written for the model; the call's result."""
    provider_call_id: str | None = None
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class Final:
    """The reply is the answer."""

    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Calls:
    """The reply asks for calls."""

    text: str | None
    """What the model said beside them; None when it said nothing."""
    calls: tuple[RequestedCall, ...]


@dataclass(frozen=True, slots=True)
class Malformed:
    """The reply attempts a call that cannot be read; nothing of it is executed."""

    error: str
    """The rule that was broken and where, for events and the log."""
    position: int
    """Characters of the reply before the place where the rule was broken."""
    correction: str
    """What the model is told."""


Reading = Final | Calls | Malformed


class DeltaFilter(typing.Protocol):
    """Lets through what may be shown of a reply while it is being written."""

    def feed(self, text: str) -> str:
        """Take the next piece of the reply; return what may be shown now, often the same piece."""
        ...

    def flush(self) -> str:
        """Return what was held back. To be called only when the whole reply was read as `Final`."""
        ...


class Protocol(typing.Protocol):
    """One way in which a model writes calls. Pure: no state, no I/O."""

    def prepare(self, request: ModelRequest) -> ModelRequest:
        """Turn the offered tools and the history into the form that this protocol sends.

        The argument's `tools` are the tools that the run offers, its `messages` the history as it was folded
        from the log. Any mixture of calls written by either protocol is accepted.
        """
        ...

    def read(self, reply: ModelReply, *, attempt: int = 1) -> Reading:
        """Say what a reply is. Never raises.

        Args:
            reply: The whole reply.
            attempt: Unreadable replies in a row, this one included if it is one; it chooses the correction.
        """
        ...

    def delta_filter(self) -> DeltaFilter:
        """A filter for the text of one reply; a reply that starts again needs a new one."""
        ...


def truncated_text(text: str) -> str:
    """The text, cut to what can be stored of one reply."""
    if len(text) <= MAX_REPLY_CHARS:
        return text
    return text[: MAX_REPLY_CHARS - len(_CUT_NOTE)] + _CUT_NOTE


def answer(reply: ModelReply) -> Final:
    """The reply as an answer, whatever it stopped for (R90, R99)."""
    text = truncated_text(reply.text or "")
    match reply.finish_reason:
        case "stop" | "length":
            return Final(text, reply.finish_reason)
        case "content_filter":
            return Final(text or WITHHELD_TEXT, "content_filter")
        case "tool_calls" | "unknown":
            _log.warning("unexpected finish reason", finish_reason=reply.raw_finish_reason)
            return Final(text or FALLBACK_TEXT, "unknown")
        case _:
            assert_never(reply.finish_reason)
