"""The events of a conversation for clients, each once and in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pydantic import BaseModel

from banksman.contracts import event_data, events
from banksman.contracts.errors import BanksmanError
from banksman.contracts.event_frames import event_frame
from banksman.contracts.frames import DETAILS, Detail
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import JsonObject, Stored, Timestamp

LEVELS: dict[str, Detail] = {
    "iteration.started": "steps",
    "protocol.retry": "steps",
    "tool_call.requested": "steps",
    "tool_call.started": "steps",
    "tool_call.completed": "steps",
    "workspace.changed": "steps",
    "run.cancel_requested": "steps",
    "history.compacted": "steps",
    "reasoning.delta": "full",
    "tool_call.output": "full",
}
"""The lowest level of detail that includes each type; `final` for other types."""

BODIES: dict[str, type[BaseModel]] = {
    "run.queued": event_data.RunQueuedData,
    "run.started": event_data.RunStartedData,
    "message.completed": events.MessageCompleted,
    "tool_call.requested": event_data.ToolCallRequestedData,
    "tool_call.completed": ToolResult,
    "approval.requested": events.ApprovalRequested,
    "approval.resolved": events.ApprovalResolved,
    "approval.escalated": events.ApprovalEscalated,
    "approval.forgotten": events.ApprovalForgotten,
    "input.requested": events.InputRequested,
    "input.resolved": events.InputResolved,
    "iteration.started": events.IterationStarted,
    "workspace.changed": events.WorkspaceChanged,
    "workspace.restored": events.WorkspaceRestored,
    "workflow.progress": events.WorkflowProgress,
    "workflow.output": events.WorkflowOutput,
    "workflow.linked": events.WorkflowLinked,
    "conversation.updated": events.ConversationUpdated,
    "run.cancel_requested": events.CancelRequested,
    "run.finished": events.RunFinished,
    "protocol.retry": event_data.ProtocolRetryData,
    "history.compacted": events.HistoryCompacted,
    "history.cut": events.HistoryCut,
    "message.delta": event_data.TextDelta,
    "reasoning.delta": event_data.TextDelta,
    "tool_call.started": event_data.CallStarted,
    "tool_call.output": event_data.CallOutput,
}
"""The model of the data of each type. Other types have none."""


class Frame(Stored):
    """The common fields of stored events and live output."""

    type: str
    """The type, such as `message.completed` or `message.delta`. Ignore unknown types."""
    ts: Timestamp
    conversation_id: str
    run_id: str | None = None
    data: JsonObject

    @cached_property
    def body(self) -> BaseModel | None:
        """The data as a typed object, such as `MessageCompleted`; None for a type without a model.

        Raises:
            ValidationError: The data does not fit the model.
        """
        model = BODIES.get(self.type)
        return None if model is None else model.model_validate(self.data)


class EventFrame(Frame):
    """One durable event, as on the websocket. Fields of newer servers are ignored."""

    seq: int
    """Number in the conversation, 1..n without gaps."""
    log_epoch: str
    """Changes when the log is restored from a backup."""
    prev_seq: int | None = None
    """Number of the previous event on this subscription; a lower detail omits some."""
    iteration: int | None = None


class LiveFrame(Frame):
    """Text or output of unfinished work. A frame may be lost; a stored event has the complete text."""


class LogRestored(BanksmanError):
    """The log was restored from a backup, so earlier events may differ. Follow it again from 0."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        super().__init__(f"the log of {conversation_id} was restored; follow it again from the start")


class EventGap(Exception):
    """An event arrived without its predecessor."""


@dataclass
class EventSequence:
    """Accepts each event of a conversation once, in order."""

    seq: int
    """Number of the last accepted event."""
    log_epoch: str | None = None
    """Epoch of the log; None before the first accepted event."""

    def accept(self, frame: EventFrame) -> bool:
        """Accept the next event and return True; return False for an earlier event.

        Raises:
            EventGap: An event before it is missing.
            LogRestored: The log epoch differs from that of the previous events.
        """
        if self.log_epoch not in (None, frame.log_epoch):
            raise LogRestored(frame.conversation_id)
        if frame.seq <= self.seq:
            return False
        if frame.seq != self.seq + 1:
            raise EventGap
        self.seq, self.log_epoch = frame.seq, frame.log_epoch
        return True


def is_shown(kind: str, detail: Detail) -> bool:
    """Return whether frames of a type are sent at a level of detail."""
    return DETAILS.index(LEVELS.get(kind, "final")) <= DETAILS.index(detail)


def frames_of(commit: events.Commit, conversation_id: str) -> tuple[EventFrame, ...]:
    """Return the event frames of a live commit."""
    return tuple(
        EventFrame.model_validate(event_frame(event, conversation_id, commit.log_epoch, event.seq - 1))
        for event in commit.events
    )
