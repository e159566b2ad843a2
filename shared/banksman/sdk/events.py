"""Events of a conversation as a client sees them, each once and in order."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from banksman.contracts.errors import BanksmanError
from banksman.contracts.events import Commit
from banksman.contracts.frames import event_frame
from banksman.contracts.wire import JsonObject, Timestamp


class EventFrame(BaseModel):
    """One durable event, as on the websocket. Fields that a newer server adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    type: str
    """Such as `message.completed` or `run.finished`; a client ignores types that it does not know."""
    seq: int
    """Its number in the conversation, 1..n without gaps."""
    log_epoch: str
    """Changes when the log was restored from a backup."""
    ts: Timestamp
    conversation_id: str
    run_id: str | None = None
    iteration: int | None = None
    data: JsonObject


class LogRestored(BanksmanError):
    """The log was restored from a backup: what was read of it may be gone. Follow it anew, from 0."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        super().__init__(f"the log of {conversation_id} was restored; follow it again from the start")


class Missing(Exception):
    """An event came whose predecessor did not."""


@dataclass
class Order:
    """Lets each event of a conversation pass once, in order."""

    seq: int
    """Number of the last event that passed."""
    log_epoch: str | None = None
    """None until the first has passed."""

    def passes(self, frame: EventFrame) -> bool:
        """Whether an event is the next one; False for one that has passed before.

        Raises:
            Missing: one before it has not passed.
            LogRestored: it is of another log than those before.
        """
        if self.log_epoch not in (None, frame.log_epoch):
            raise LogRestored(frame.conversation_id)
        if frame.seq <= self.seq:
            return False
        if frame.seq != self.seq + 1:
            raise Missing
        self.seq, self.log_epoch = frame.seq, frame.log_epoch
        return True


def frames_of(commit: Commit, conversation_id: str) -> tuple[EventFrame, ...]:
    """The events of a live commit."""
    return tuple(
        EventFrame.model_validate(event_frame(event, conversation_id, commit.log_epoch, event.seq - 1))
        for event in commit.events
    )
