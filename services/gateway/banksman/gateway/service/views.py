"""What clients are told of a conversation beside its events: its head, its runs, its open questions."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import datetime

from banksman.bus import jetstream
from banksman.bus.errors import LogBroken, LogDamaged
from banksman.bus.log import EventLog, StoredCommit, stored_commit
from banksman.bus.names import EVENTS
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict, Poison
from banksman.contracts.events import (
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    ConversationUpdated,
    Event,
    InputRequested,
    InputResolved,
    IterationStarted,
    Outcome,
    RunFinished,
    RunQueued,
    RunStarted,
    RunStatus,
    ToolCallCompleted,
    UnknownEvent,
)
from banksman.log_integrity.damage import DamagedLogs

logger = logging.getLogger(__name__)

KEPT_VIEWS = 2_000
"""Folded conversations kept in memory, some kilobytes each; the rest is folded again when asked for."""


@dataclass(slots=True)
class RunView:
    """Where a run stands."""

    run_id: str
    status: RunStatus | Outcome
    asked_at: datetime
    asked_seq: int = 0
    """Number of its first event; 0 while it has none."""
    message_id: str | None = None
    model: str | None = None
    started_at: datetime | None = None
    iteration: int = 0
    finished_at: datetime | None = None
    finished_in: int = 0
    """Stream sequence of the commit with its `run.finished`; 0 while it is open."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """An approval that nobody has decided."""

    run_id: str
    asked: ApprovalRequested


@dataclass
class ConversationView:
    """The fold of one log, as far as clients need it."""

    stream_seq: int = 0
    log_epoch: str = ""
    oldest_seq: int = 1
    """Number of the oldest stored event."""
    last_seq: int = 0
    last_ts: datetime | None = None
    title: str = ""
    deleted: bool = False
    runs: dict[str, RunView] = field(default_factory=dict[str, RunView])
    questions: dict[str, OpenQuestion] = field(default_factory=dict[str, OpenQuestion])
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    """Open input requests, each with its run."""
    outputs: dict[str, int] = field(default_factory=dict[str, int])
    """Tool call to the stream sequence of the commit with its result."""
    _last_seqs: list[int] = field(default_factory=list[int])
    _stream_seqs: list[int] = field(default_factory=list[int])

    @property
    def open_run(self) -> RunView | None:
        """The run that works or waits; queued ones come after it."""
        open_runs = [run for run in self.runs.values() if not run.finished_in]
        active = [run for run in open_runs if run.status != "queued" and run.started_at]
        return next(iter(active or open_runs), None)

    @property
    def status(self) -> str:
        """`idle`, or the status of the open run."""
        run = self.open_run
        return "idle" if run is None else run.status

    def position(self, after_seq: int) -> int:
        """Stream sequence of the last commit whose events all have numbers up to `after_seq`."""
        index = bisect_right(self._last_seqs, after_seq)
        return self._stream_seqs[index - 1] if index else 0

    def apply(self, stored: StoredCommit) -> None:
        """Take the next commit."""
        commit = stored.commit
        if not self._stream_seqs:
            self.oldest_seq = commit.first_seq
        for event in commit.events:
            self._apply(event, stored.stream_seq)
        self.stream_seq, self.log_epoch = stored.stream_seq, commit.log_epoch
        self.last_seq, self.last_ts = commit.last_seq, commit.ts
        self._last_seqs.append(commit.last_seq)
        self._stream_seqs.append(stored.stream_seq)

    def _apply(self, event: Event, stream_seq: int) -> None:
        match event.data:
            case ConversationUpdated() as updated:
                self.title = self.title if updated.title is None else updated.title
                self.deleted = self.deleted or updated.status == "deleted"
            case ToolCallCompleted(result=result):
                self.outputs[result.tool_call_id] = stream_seq
            case UnknownEvent():
                pass
            case _ if event.run_id is not None:
                self._apply_to_run(self._run(event, event.run_id), event, stream_seq)
            case _:
                pass

    def _run(self, event: Event, run_id: str) -> RunView:
        if run_id not in self.runs:
            self.runs[run_id] = RunView(run_id, "queued", event.ts, event.seq)
        return self.runs[run_id]

    def _apply_to_run(self, run: RunView, event: Event, stream_seq: int) -> None:
        match event.data:
            case RunQueued() as queued:
                run.message_id, run.model = queued.message_id, queued.settings.model
            case RunStarted() as started:
                run.status = "cancelling" if run.status == "cancelling" else "running"
                run.message_id, run.model = started.message_id, started.settings.model
                run.started_at = event.ts
            case IterationStarted(n=n):
                run.iteration = n
            case CancelRequested():
                run.status = run.status if run.finished_in else "cancelling"
            case RunFinished() as finished:
                self._finish(run, finished, event, stream_seq)
            case ApprovalRequested() as asked:
                self.questions[asked.approval_id] = OpenQuestion(run.run_id, asked)
            case ApprovalResolved(approval_id=approval_id):
                self.questions.pop(approval_id, None)
            case InputRequested(request_id=request_id):
                self.inputs[request_id] = run.run_id
            case InputResolved(request_id=request_id):
                self.inputs.pop(request_id, None)
            case _:
                return
        self._settle_status(run)

    def _finish(self, run: RunView, finished: RunFinished, event: Event, stream_seq: int) -> None:
        run.status, run.iteration, run.model = finished.status, finished.iterations, finished.model
        run.finished_at, run.finished_in = event.ts, stream_seq
        self.questions = {key: open_ for key, open_ in self.questions.items() if open_.run_id != run.run_id}
        self.inputs = {key: of for key, of in self.inputs.items() if of != run.run_id}

    def _settle_status(self, run: RunView) -> None:
        if run.finished_in or run.started_at is None or run.status == "cancelling":
            return
        if any(question.run_id == run.run_id for question in self.questions.values()):
            run.status = "awaiting_approval"
        elif run.run_id in self.inputs.values():
            run.status = "awaiting_input"
        else:
            run.status = "running"


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Stored events of one conversation, and its head when they were read."""

    head_seq: int
    oldest_seq: int
    log_epoch: str
    events: tuple[Event, ...]


@dataclass
class _Kept:
    view: ConversationView = field(default_factory=ConversationView)
    # One reader at a time brings a view up to date; a second one would apply commits twice.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Views:
    """Views of the conversations that were asked for last."""

    def __init__(self, log: EventLog, *, damaged: DamagedLogs | None = None, kept: int = KEPT_VIEWS) -> None:
        self.log = log
        self._damaged = damaged
        self._most = kept
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    async def read(self, tenant: str, conversation_id: str) -> ConversationView:
        """The view of everything stored when this is called.

        Raises:
            LogBroken, Poison: the log cannot be read.
            Unavailable: no answer.
        """
        kept = self._keep(tenant, conversation_id)
        async with kept.turn:
            after = kept.view.stream_seq
            commits = await self.log.read(tenant, conversation_id, after=after, leader=True)
            if commits and after and commits[0].commit.log_epoch != kept.view.log_epoch:
                kept.view = ConversationView()
                commits = await self.log.read(tenant, conversation_id, leader=True)
            for stored in commits:
                kept.view.apply(stored)
            return kept.view

    async def events(self, tenant: str, conversation_id: str, *, after_seq: int) -> StoredEvents:
        """Everything after `after_seq` that is stored when this is called, in order.

        What is stored while it is read is left for the next time: the head and the events are of one moment.

        Raises:
            LogBroken, Poison: the log cannot be read.
            Unavailable: no answer.
        """
        view = await self.read(tenant, conversation_id)
        page = StoredEvents(view.last_seq, view.oldest_seq, view.log_epoch, ())
        if page.head_seq <= after_seq:
            return page
        commits = await self.log.read(tenant, conversation_id, after=view.position(after_seq), leader=True)
        stored = (event for commit in commits for event in commit.commit.events)
        return replace(page, events=tuple(e for e in stored if after_seq < e.seq <= page.head_seq))

    def damage(self, tenant: str, conversation_id: str) -> LogDamaged | None:
        """What is known to be wrong with a log; None when nothing is."""
        problem = self._damaged and self._damaged.problem(tenant, conversation_id)
        return LogDamaged(tenant, conversation_id, problem) if problem else None

    async def check_whole(self, tenant: str, conversation_id: str) -> None:
        """Refuse a conversation whose log is not whole: what it says cannot be gone on from.

        Raises:
            LogDamaged: it is known that events are missing.
            Conflict: events are missing, or cannot be read.
            Unavailable: no answer.
        """
        if damage := self.damage(tenant, conversation_id):
            raise damage
        try:
            view = await self.read(tenant, conversation_id)
            problem = None if view.oldest_seq == 1 or view.deleted else f"it begins with {view.oldest_seq}"
        except (LogBroken, Poison) as error:
            problem = str(error)
        if problem is not None:
            logger.error("the log of a conversation is damaged: %s", problem, extra={"id": conversation_id})
            raise Conflict(f"the log of {conversation_id} is damaged: an operator can restore it ({problem})")

    async def commit(self, tenant: str, conversation_id: str, stream_seq: int) -> StoredCommit | None:
        """One stored commit; None when it is gone."""
        subject = subjects.conversation(tenant, conversation_id)
        message = await jetstream.next_message(self.log.bus, EVENTS, subject, after=stream_seq - 1)
        return None if message is None or message.stream_seq != stream_seq else stored_commit(message)

    def forget(self, tenant: str, conversation_id: str) -> None:
        """Drop what is kept of a conversation that was deleted."""
        self._kept.pop((tenant, conversation_id), None)

    def _keep(self, tenant: str, conversation_id: str) -> _Kept:
        key = (tenant, conversation_id)
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return kept
