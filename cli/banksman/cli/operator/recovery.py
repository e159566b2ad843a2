"""Recovery of conversation logs after a restore or an accepted loss. No service may be running.

A log with a gap first ends before the gap: `cut` moves the commits after it to a file.

The streams of a backup are from slightly different moments: a log may hold an open run whose work message is
missing. Each log receives one commit that starts a new log epoch and removes the run's owner. Clients discard
their positions in the old epoch. Then the run's approval request or work message is published again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS
from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import stored_commit
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict, Poison
from banksman.contracts.events import Commit, HistoryCut
from banksman.contracts.ids import new_id
from banksman.contracts.work import ResumeRun
from banksman.log_integrity.check import from_damage_on
from banksman.runs.approval.requests import open_approval_request
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.owner import Draft
from banksman.runs.ports import Clock
from banksman.runs.state import Conversation
from banksman.runs.steps import next_in_queue

_WORKFLOW = "workflow:"
"""Prefix of the model name of a run that the workflows service drives."""


@dataclass(frozen=True, slots=True)
class Recovered:
    reopened: bool = False
    resumed: bool = False


class LogRecovery:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._clock = clock
        self._log = ConversationLog(bus, cached=1)
        self._approvals = ApprovalSlots(bus)
        self._work = RunQueue(bus)

    async def recover(self, tenant: str, conversation_id: str, *, cut: HistoryCut | None = None) -> Recovered:
        """Append the commit with a new epoch, and publish what resumes the log's run. Safe to repeat.

        With `cut`, the events that the log lost are recorded too.

        Raises:
            LogBroken, Poison: the log cannot be read.
            Conflict: another process appended to it.
        """
        state = await self._log.read(tenant, conversation_id)
        if state.deleted or not state.stream_seq:
            return Recovered()
        stored = await self._log.append(state, _new_epoch(state, self._clock.now()))
        if stored is not None and cut is not None:
            stored = await self._record(stored, cut)
        if stored is None:
            raise Conflict(f"{conversation_id}: another process writes to its log: stop all services first")
        request = open_approval_request(stored)
        if request is not None:
            await self._approvals.publish_request(request)
        resume = None if request is not None else _resume(stored)
        if resume is not None:
            await self._work.publish(resume)
        return Recovered(reopened=request is not None, resumed=resume is not None)

    async def _record(self, state: Conversation, cut: HistoryCut) -> Conversation | None:
        draft = Draft(state, self._clock.now())
        draft.add(None, (cut,))
        return await self._log.append(state, draft.to_commit(new_id("e"), state.log_epoch, state.owner))


def _new_epoch(state: Conversation, now: datetime) -> Commit:
    # A workflow's work message is in the backup; its redelivery under the stored owner is a takeover.
    owner = state.owner if _is_workflow(state) else None
    return Draft(state, now).to_commit(new_id("e"), new_id("l"), owner)


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


async def cut(bus: Bus, tenant: str, conversation_id: str, directory: Path) -> HistoryCut | None:
    """Move the commits after the first gap of a log to a file; return the record, or None without a gap.

    The file is complete before a commit is removed, and the last commit is removed first: after a crash the
    command can be repeated, and appends the remaining commits to the file.

    Raises:
        Conflict: No commit is stored before the gap.
    """
    subject = subjects.conversation(tenant, conversation_id)
    behind = await from_damage_on(bus, subject)
    if not behind:
        return None
    store(behind, directory / f"{tenant}.{conversation_id}.jsonl")
    before = await jetstream.next_message(bus, EVENTS, subject, after=0)
    if before is None or before.stream_seq >= behind[0].stream_seq:
        raise Conflict(
            f"{conversation_id}: no commit is stored before the gap: "
            "restore a backup, or delete the conversation"
        )
    for message in reversed(behind):
        await jetstream.delete_message(bus, EVENTS, message.stream_seq)
    last = await jetstream.last_message(bus, EVENTS, subject)
    first_missing = 1 if last is None else stored_commit(last).commit.last_seq + 1
    return HistoryCut(first_missing=first_missing, set_aside=sum(map(_events_in, behind)))


def store(messages: list[StoredMessage], file: Path) -> None:
    """Append commits to a file, one JSON object per line. A body that cannot be decoded is stored as text."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        for message in messages:
            stored = {
                "stream_seq": message.stream_seq,
                "stored_at": str(message.time),
                "commit": _body(message),
            }
            lines.write(json.dumps(stored, ensure_ascii=False) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def _body(message: StoredMessage) -> object:
    try:
        return json.loads(message.data)
    except ValueError:
        return message.data.decode(errors="replace")


def _events_in(message: StoredMessage) -> int:
    try:
        return len(stored_commit(message).commit.events)
    except Poison:
        return 0
