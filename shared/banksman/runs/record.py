"""A commit in the making: turns what is to be recorded into events, and adds the events that follow. Pure.

One commit is one durable write, so what belongs together goes into one: an outcome, the events that follow
from it, and the claim of the next queued run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from banksman.contracts.events import (
    Commit,
    Event,
    EventBody,
    IterationStarted,
    Owner,
    RunFinished,
    RunStarted,
)
from banksman.runs.fold import apply_events
from banksman.runs.state import Conversation
from banksman.runs.steps import Idle, Park, Record, next_in_queue, next_step


@dataclass(frozen=True, slots=True)
class Extent:
    """What a commit holds besides the events that are recorded."""

    follows: bool
    """The events that follow from them for the same run."""
    starts_next: bool
    """The start of the next queued run, when this one ends."""


@dataclass
class Draft:
    """The events of a commit that follows `state`; `state` moves on with each of them."""

    state: Conversation
    now: datetime
    events: list[Event] = field(default_factory=list[Event])

    def add(self, run_id: str | None, bodies: Iterable[EventBody]) -> None:
        """Append events and fold them."""
        for body in bodies:
            event = Event(
                seq=self.state.last_seq + 1,
                ts=self.now,
                run_id=run_id,
                iteration=_iteration(self.state, body),
                data=body,
            )
            self.events.append(event)
            self.state = replace(apply_events(self.state, (event,)), last_seq=event.seq)

    def follow(self, extent: Extent) -> None:
        """Append the events that follow from the log alone, as far as `extent` goes."""
        while extent.follows:
            step = next_step(self.state, self.now)
            if isinstance(step, Record):
                self.add(step.run_id, step.bodies)
            elif isinstance(step, Idle) and extent.starts_next and (queued := next_in_queue(self.state)):
                self.add(queued[0], (queued[1],))
            else:
                return

    @property
    def rests(self) -> bool:
        """True when the conversation needs no owner: no run is open, or the open one waits for a decision."""
        return isinstance(next_step(self.state, self.now), Idle | Park)

    def commit(
        self, commit_id: str, log_epoch: str, owner: Owner | None, *, claim: int | None = None
    ) -> Commit:
        """Return the commit that holds the events.

        Args:
            commit_id: Unique to this commit.
            log_epoch: The epoch of the log.
            owner: The owner of the run after this commit.
            claim: The owner epoch that this commit claims; None when it claims nothing.
        """
        return Commit(
            ts=self.now,
            id=commit_id,
            log_epoch=log_epoch,
            first_seq=self.state.last_seq + 1 - len(self.events),
            owner=owner,
            owner_epoch=self.state.owner_epoch if claim is None else claim,
            claim=claim is not None,
            events=tuple(self.events),
        )


def _iteration(state: Conversation, body: EventBody) -> int | None:
    if isinstance(body, IterationStarted):
        return body.n
    if isinstance(body, RunStarted | RunFinished) or state.run is None:
        return None
    return state.run.iteration or None
