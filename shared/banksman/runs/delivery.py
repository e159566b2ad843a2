"""What a delivered work message means, given the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.events import EventBody, RunQueued, RunStarted
from banksman.contracts.work import RunWork, StartRun
from banksman.runs.state import Conversation
from banksman.runs.steps import never_started, next_in_queue


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

    Args:
        state: the fold of the whole log.
        work: what the message says.
        work_seq: its stream sequence, which tells a redelivery from a second message of the same content.
    """
    if isinstance(work, StartRun) and not state.knows(work.run_id):
        return _new(state, work)
    if state.run is None:
        queued = next_in_queue(state)
        return Claim(queued[0], (queued[1],)) if queued else Nothing()
    if state.owner is not None:
        return Claim(state.run.run_id) if state.owner.work_seq == work_seq else Nothing()
    if state.run.waits:
        return AskAgain()
    return Claim(state.run.run_id)


def _new(state: Conversation, work: StartRun) -> Meaning:
    if state.run is None and not state.queue:
        started = RunStarted(message_id=work.message_id, message=work.content, settings=work.settings)
        return Claim(work.run_id, (started,))
    queued = RunQueued(
        position=len(state.queue) + 1,
        message_id=work.message_id,
        message=work.content,
        settings=work.settings,
    )
    if work.run_id in state.cancelled_early:
        return Enqueue(work.run_id, (queued, never_started(work.settings)))
    return Enqueue(work.run_id, (queued,))
