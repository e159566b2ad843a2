"""The events of a conversation as clients receive them, each once and in order."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import Commit
from banksman.contracts.frames import event_frame
from banksman.contracts.wire import JsonObject, Stored, Timestamp


class EventFrame(Stored):
    """One durable event, as on the websocket. Fields of newer servers are ignored."""

    type: str
    """Such as `message.completed` or `run.finished`. Ignore unknown types."""
    seq: int
    """Number in the conversation, 1..n without gaps."""
    log_epoch: str
    """Changes when the log is restored from a backup."""
    ts: Timestamp
    conversation_id: str
    run_id: str | None = None
    iteration: int | None = None
    data: JsonObject


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
            LogRestored: Its log epoch differs from the previous events.
        """
        if self.log_epoch not in (None, frame.log_epoch):
            raise LogRestored(frame.conversation_id)
        if frame.seq <= self.seq:
            return False
        if frame.seq != self.seq + 1:
            raise EventGap
        self.seq, self.log_epoch = frame.seq, frame.log_epoch
        return True


def frames_of(commit: Commit, conversation_id: str) -> tuple[EventFrame, ...]:
    """Return the event frames of a live commit."""
    return tuple(
        EventFrame.model_validate(event_frame(event, conversation_id, commit.log_epoch, event.seq - 1))
        for event in commit.events
    )
