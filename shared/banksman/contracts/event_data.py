"""The `data` of event frames where it differs from the stored body, and of live output."""

from __future__ import annotations

from typing import Literal

from banksman.contracts.assistants import Branch
from banksman.contracts.messages import Content, ToolProtocol
from banksman.contracts.wire import JsonObject, Stored


class RunLimits(Stored):
    """The limits of a run."""

    max_iterations: int
    run_timeout_s: float


class RunStartedData(Stored):
    """The start of a run."""

    message_id: str
    message: Content
    """The user's message."""
    model: str
    assistant: str
    assistant_revision: int
    tool_protocol: ToolProtocol
    limits: RunLimits
    branch: Branch | None = None
    """The message after which the run continues the conversation; omitted for the newest message."""
    traceparent: str | None = None
    """The W3C trace context of the request that started it; omitted without one."""


class RunQueuedData(RunStartedData):
    """A run that waits for an earlier one."""

    position: int
    """Number of runs before it."""


class ToolCallRequestedData(Stored):
    """A call that the model requested."""

    tool_call_id: str
    name: str
    arguments: JsonObject
    terminate: bool
    requires_approval: bool


class ProtocolRetryData(Stored):
    """The model wrote a call that cannot be parsed, and receives a correction."""

    attempt: int
    max: int
    error: str
    """The rule that the reply violates, and the position."""


class TextDelta(Stored):
    """A piece of an unfinished message. `message.completed` replaces all pieces."""

    message_id: str
    offset: int
    """Number of characters of the message before this piece."""
    text: str


class CallStarted(Stored):
    """A call began to run."""

    tool_call_id: str
    runner: str


class CallOutput(Stored):
    """Output of a running call."""

    tool_call_id: str
    stream: Literal["stdout", "stderr"] | None
    text: str
