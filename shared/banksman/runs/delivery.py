"""What a delivered work message means, given the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.events import EventBody, RunQueued, RunStarted
from banksman.contracts.work import RunWork, StartRun
from banksman.runs.state import Conversation
from banksman.runs.steps import CANCELLED, DELETED, never_started, next_in_queue


@dataclass(frozen=True, slots=True)
class Claim:
    """Become the owner, with these first events (none for a takeover or a resumption)."""

    run_id: str
    bodies: tuple[EventBody, ...] = ()


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Another run is open: note this one behind it."""

    run_id: str
    bodies: tuple[EventBody, ...]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The run is parked: put its question once more, then ack. Repeats what a crash may have left out."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The log shows that this message has done its work: ack it."""


Meaning = Claim | Enqueue | AskAgain | Nothing


def meaning(state: Conversation, work: RunWork, work_seq: int) -> Meaning:
    """What to do about a delivery. Safe to ask any number of times about the same message.

    A message that was once to be acked never claims again, whatever follows it in the log: the ack of a
    process that was slow may still arrive, and would take the message from under a later claim.

    Args:
        state: the fold of the whole log.
        work: what the message says.
        work_seq: its stream sequence, which tells a redelivery from a second message of the same content.
    """
    if isinstance(work, StartRun) and not state.knows(work.run_id):
        return _new(state, work)
    if state.run is not None and state.owner is not None:
        return Claim(state.run.run_id) if state.owner.work_seq == work_seq else Nothing()
    if state.run is not None and state.run.waits:
        return AskAgain()
    if isinstance(work, StartRun) or work.owner_epoch != state.owner_epoch:
        return Nothing()
    if state.run is not None:
        return Claim(state.run.run_id)
    queued = next_in_queue(state)
    return Claim(queued[0], (queued[1],)) if queued and queued[0] == work.run_id else Nothing()


def _new(state: Conversation, work: StartRun) -> Meaning:
    if state.run is None and not state.queue:
        started = RunStarted(message_id=work.message_id, message=work.content, settings=work.settings)
        return Claim(work.run_id, (started,))
    return Enqueue(work.run_id, queued_behind(state, work))


def queued_behind(state: Conversation, start: StartRun) -> tuple[EventBody, ...]:
    """The events of a run that has to wait for its turn; it ends at once when it can never start."""
    queued = RunQueued(
        position=len(state.queue) + 1,
        message_id=start.message_id,
        message=start.content,
        settings=start.settings,
    )
    if state.deleted:
        return queued, never_started(start.settings, DELETED)
    if start.run_id in state.cancelled_early:
        return queued, never_started(start.settings, CANCELLED)
    return (queued,)
