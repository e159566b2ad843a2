"""Event frames, as clients receive them: their levels of detail, and the shapes of their `data`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel

from banksman.contracts import events
from banksman.contracts.assistants import Branch
from banksman.contracts.frames import DETAILS, Detail
from banksman.contracts.live_output import ModelPause
from banksman.contracts.messages import Content, ToolProtocol
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import JsonObject, Stored

LEVELS: Mapping[str, Detail] = {
    "run.queued": "final",
    "run.started": "final",
    "run.cancel_requested": "steps",
    "run.finished": "final",
    "iteration.started": "steps",
    "message.completed": "final",
    "message.delta": "final",
    "reasoning.delta": "full",
    "reasoning.completed": "steps",
    "model.waiting": "final",
    "protocol.retry": "steps",
    "model.notice": "steps",
    "tool_call.requested": "steps",
    "tool_call.started": "steps",
    "tool_call.output": "full",
    "tool_call.completed": "steps",
    "approval.requested": "final",
    "approval.resolved": "final",
    "approval.escalated": "final",
    "approval.forgotten": "final",
    "input.requested": "final",
    "input.resolved": "final",
    "workspace.changed": "steps",
    "workspace.restored": "final",
    "history.compacted": "steps",
    "history.cut": "final",
    "workflow.progress": "final",
    "workflow.output": "final",
    "workflow.linked": "final",
    "conversation.updated": "final",
}
"""The lowest level of detail at which clients receive each type of stored event and of live output."""


def is_shown(kind: str, detail: Detail) -> bool:
    """Return whether clients receive frames of a type; unknown types, of newer versions, always."""
    return DETAILS.index(LEVELS.get(kind, "final")) <= DETAILS.index(detail)


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
    compact: bool = False
    """Whether the run only replaces older messages by a summary; omitted for other runs."""
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


class ToolCallStartedData(Stored):
    """A call began to run."""

    tool_call_id: str
    runner: str


class ToolCallOutputData(Stored):
    """Output of a running call."""

    tool_call_id: str
    stream: Literal["stdout", "stderr"] | None
    text: str


_RESHAPED: Mapping[type[BaseModel], type[BaseModel]] = {
    events.RunQueued: RunQueuedData,
    events.RunStarted: RunStartedData,
    events.ProtocolRetry: ProtocolRetryData,
    events.ToolCallRequested: ToolCallRequestedData,
    events.ToolCallCompleted: ToolResult,
}
_STORED: tuple[type[BaseModel], ...] = get_args(get_args(events.KnownBody)[0])
STORED_DATA: Mapping[str, type[BaseModel]] = {
    body.model_fields["type"].default: _RESHAPED.get(body, body) for body in _STORED
}
"""The `data` of each type of stored event: its stored body, unless clients receive another shape."""
LIVE_DATA: Mapping[str, type[BaseModel]] = {
    "message.delta": TextDelta,
    "reasoning.delta": TextDelta,
    "model.waiting": ModelPause,
    "tool_call.started": ToolCallStartedData,
    "tool_call.output": ToolCallOutputData,
}
"""The `data` of frames that are not stored: they have no number and may be lost."""


def event_frame(event: events.Event, conversation_id: str, log_epoch: str, prev_seq: int) -> dict[str, Any]:
    """Return the frame; `prev_seq` is the number of the previous event on the same subscription."""
    frame: dict[str, Any] = {
        "type": event.data.type,
        "seq": event.seq,
        "prev_seq": prev_seq,
        "log_epoch": log_epoch,
        "ts": event.ts.isoformat(),
        "conversation_id": conversation_id,
        "run_id": event.run_id,
        "data": event_data(event),
    }
    if event.iteration is not None:
        frame["iteration"] = event.iteration
    if event.imported:
        frame["imported"] = True
    return frame


def event_data(event: events.Event) -> JsonObject:
    """Return the `data` of an event frame: the body without the fields that only model requests need."""
    body = event.data
    match body:
        case events.RunStarted() | events.RunQueued():
            return _run_data(body)
        case events.MessageCompleted():
            return body.model_dump(
                mode="json", exclude={"type", "provider_state", "provider", "protocol", "usage", "provenance"}
            )
        case events.ProtocolRetry():
            return body.model_dump(mode="json", include={"attempt", "max", "error"})
        case events.ToolCallRequested(call=call):
            shown = {"name", "arguments", "terminate", "requires_approval"}
            return {"tool_call_id": call.id, **call.model_dump(mode="json", include=shown)}
        case events.ToolCallCompleted(result=result):
            return result.model_dump(mode="json", exclude={"changed", "changed_more", "output_key"})
        case events.ConversationUpdated():
            return body.model_dump(mode="json", include={"title", "status"})
        case _:
            return body.model_dump(mode="json", by_alias=True, exclude={"type"})


def _run_data(body: events.RunStarted | events.RunQueued) -> JsonObject:
    settings = body.settings
    data = body.model_dump(mode="json", include={"message_id", "message", "position"})
    return {
        **data,
        "model": settings.model,
        "assistant": settings.assistant_id,
        "assistant_revision": settings.assistant_revision,
        "tool_protocol": settings.tool_protocol,
        "limits": {
            "max_iterations": settings.tools.max_iterations,
            "run_timeout_s": settings.limits.run_timeout_s,
        },
        **({} if settings.branch is None else {"branch": settings.branch.model_dump(mode="json")}),
        **({"compact": True} if settings.compact else {}),
        **({} if settings.traceparent is None else {"traceparent": settings.traceparent}),
    }
