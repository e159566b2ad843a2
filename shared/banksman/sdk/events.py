"""The frames of a client: its requests, and the events of a conversation, each once and in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pydantic import BaseModel

from banksman.contracts import event_frames, events, frames
from banksman.contracts.errors import BanksmanError
from banksman.contracts.wire import JsonObject, Stored, Timestamp

RequestFrame = (
    frames.ConversationCreate
    | frames.ChatSend
    | frames.RunCancel
    | frames.ApprovalDecision
    | frames.WorkflowStart
    | frames.InputReply
)

BODIES: Mapping[str, type[BaseModel]] = {**event_frames.STORED_DATA, **event_frames.LIVE_DATA}
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
        """The data as a typed object, such as `MessageCompleted`; None for a type without a model."""
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
        """Return True for the next event, False for an earlier one; raise `EventGap` or `LogRestored`."""
        if self.log_epoch not in (None, frame.log_epoch):
            raise LogRestored(frame.conversation_id)
        if frame.seq <= self.seq:
            return False
        if frame.seq != self.seq + 1:
            raise EventGap
        self.seq, self.log_epoch = frame.seq, frame.log_epoch
        return True


def frames_of(commit: events.Commit, conversation_id: str) -> tuple[EventFrame, ...]:
    """Return the event frames of a live commit."""
    return tuple(
        EventFrame.model_validate(
            event_frames.event_frame(event, conversation_id, commit.log_epoch, event.seq - 1)
        )
        for event in commit.events
    )
