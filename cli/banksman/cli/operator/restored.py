"""What is done to each log after it was brought back from a backup, while nothing else runs.

A backup is of a moment, and its streams of slightly different ones: a run may be open in its log whose work
message is gone. So each log gets one commit: it names a new epoch, by which clients know that their positions
no longer hold, and nobody owns the run any more. What has to go on is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.log import EventLog
from banksman.bus.slots import ApprovalSlots
from banksman.contracts.errors import Conflict
from banksman.contracts.events import Commit
from banksman.contracts.ids import new_id
from banksman.contracts.work import ResumeRun
from banksman.runs.folded_log import FoldedLog
from banksman.runs.owner import open_question
from banksman.runs.ports import Clock
from banksman.runs.record import Draft
from banksman.runs.state import Conversation
from banksman.runs.steps import next_in_queue
from banksman.runs.stores import StoredApprovals, StoredWork

_WORKFLOW = "workflow:"
"""How the model of a run is called that the workflows service drives."""


@dataclass(frozen=True, slots=True)
class Revived:
    """What became of a log."""

    asked: bool = False
    """A person is asked again."""
    resumed: bool = False
    """A run goes on, or starts."""


class Revival:
    """Takes up logs that were brought back."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._clock = clock
        self._log = FoldedLog(EventLog(bus), keep=1)
        self._approvals = StoredApprovals(bus, ApprovalSlots(bus))
        self._work = StoredWork(bus)

    async def revive(self, tenant: str, conversation_id: str) -> Revived:
        """Give a log its new epoch and ask for what has to go on. Safe to repeat.

        Raises:
            LogBroken, Poison: the log cannot be read.
            Conflict: somebody else writes to it.
            Unavailable: no answer.
        """
        state = await self._log.read(tenant, conversation_id)
        if state.deleted or not state.stream_seq:
            return Revived()
        stored = await self._log.append(state, _new_epoch(state, self._clock.now()))
        if stored is None:
            raise Conflict(f"{conversation_id}: somebody writes to its log: end all services first")
        question = open_question(stored)
        if question is not None:
            await self._approvals.ask(question)
        resume = None if question is not None else _resume(stored)
        if resume is not None:
            await self._work.publish(resume)
        return Revived(asked=question is not None, resumed=resume is not None)


def _new_epoch(state: Conversation, now: datetime) -> Commit:
    # A workflow's work message is in the backup, and its redelivery to whoever owned the run is a takeover.
    owner = state.owner if _is_workflow(state) else None
    return Draft(state, now).commit(new_id("e"), new_id("l"), owner)


def _resume(state: Conversation) -> ResumeRun | None:
    queued = next_in_queue(state)
    run_id = state.run.run_id if state.run is not None else queued[0] if queued else None
    if run_id is None or _is_workflow(state):
        return None
    return ResumeRun(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run_id,
        cause=state.log_epoch,
        owner_epoch=state.owner_epoch,
    )


def _is_workflow(state: Conversation) -> bool:
    settings = state.run.settings if state.run else state.queue[0].settings if state.queue else None
    return settings is not None and settings.model.startswith(_WORKFLOW)
