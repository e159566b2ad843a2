"""What becomes of an outcome in the log: bodies to events, and events with all that follows from them.

Pure. A `Draft` puts into one commit what belongs together: the outcome, the facts that follow from it, and
the claim of the next queued run. One commit is one durable write.
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
from banksman.runs.state import Conversation, apply_events
from banksman.runs.steps import Idle, Park, Record, next_in_queue, next_step


@dataclass
class Draft:
    """A commit in the making, and the state it would lead to."""

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

    def follow(self, *, start_next: bool) -> None:
        """Add what follows from the log alone, until something outside it is needed."""
        while True:
            step = next_step(self.state, self.now)
            if isinstance(step, Record):
                self.add(step.run_id, step.bodies)
            elif isinstance(step, Idle) and start_next and (queued := next_in_queue(self.state)):
                self.add(queued[0], (queued[1],))
            else:
                return

    @property
    def rests(self) -> bool:
        """True when nobody needs to own the conversation: no run is open, or a person is waited for."""
        return isinstance(next_step(self.state, self.now), Idle | Park)

    def commit(
        self, commit_id: str, log_epoch: str, owner: Owner | None, *, claim: int | None = None
    ) -> Commit:
        """The commit that holds the events.

        Args:
            commit_id: unique to this commit.
            log_epoch: that of the log.
            owner: who owns the run from here on.
            claim: the owner epoch this commit raises to; None when it claims nothing.
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
