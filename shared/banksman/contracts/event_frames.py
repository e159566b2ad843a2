"""Event frames: the stored events that clients receive."""

from __future__ import annotations

from typing import Any, assert_never

from banksman.contracts.events import (
    ApprovalEscalated,
    ApprovalForgotten,
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    ConversationUpdated,
    Event,
    HistoryCompacted,
    HistoryCut,
    InputRequested,
    InputResolved,
    IterationStarted,
    MessageCompleted,
    ProtocolRetry,
    RunFinished,
    RunQueued,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
    UnknownEvent,
    WorkflowLinked,
    WorkflowOutput,
    WorkflowProgress,
    WorkspaceChanged,
    WorkspaceRestored,
)
from banksman.contracts.frames import Detail
from banksman.contracts.wire import JsonObject


def detail_of(event: Event) -> Detail:
    """Return the lowest detail level at which clients receive the event."""
    match event.data:
        case (
            RunQueued()
            | RunStarted()
            | MessageCompleted()
            | ApprovalRequested()
            | ApprovalResolved()
            | ApprovalEscalated()
            | ApprovalForgotten()
            | RunFinished()
            | WorkflowProgress()
            | WorkflowOutput()
            | WorkflowLinked()
            | InputRequested()
            | InputResolved()
            | WorkspaceRestored()
            | ConversationUpdated()
            | HistoryCut()
            # Only newer versions know the level of this event. Clients ignore unknown types.
            | UnknownEvent()
        ):
            return "final"
        case (
            IterationStarted()
            | ProtocolRetry()
            | ToolCallRequested()
            | ToolCallCompleted()
            | WorkspaceChanged()
            | CancelRequested()
            | HistoryCompacted()
        ):
            return "steps"
        case _:
            assert_never(event.data)


def event_frame(event: Event, conversation_id: str, log_epoch: str, prev_seq: int) -> dict[str, Any]:
    """Return the event frame that clients receive.

    Args:
        event: The stored event.
        conversation_id: The event's conversation.
        log_epoch: The epoch of the log that stores it.
        prev_seq: Number of the previous event sent on the same subscription.
    """
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
    return frame


def event_data(event: Event) -> JsonObject:
    """Return the `data` of an event frame: the body without the fields that only model requests need."""
    body = event.data
    match body:
        case RunStarted() | RunQueued():
            return _run_data(body)
        case MessageCompleted():
            return body.model_dump(
                mode="json", exclude={"type", "provider_state", "provider", "protocol", "usage"}
            )
        case ProtocolRetry():
            return body.model_dump(mode="json", include={"attempt", "max", "error"})
        case ToolCallRequested():
            call = body.call
            return {
                "tool_call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "terminate": call.terminate,
                "requires_approval": call.requires_approval,
            }
        case ToolCallCompleted():
            return body.result.model_dump(mode="json", exclude={"changed", "output_key"})
        case ConversationUpdated():
            return body.model_dump(mode="json", include={"title", "status"})
        case _:
            return body.model_dump(mode="json", by_alias=True, exclude={"type"})


def _run_data(body: RunStarted | RunQueued) -> JsonObject:
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
        **({} if settings.traceparent is None else {"traceparent": settings.traceparent}),
    }
