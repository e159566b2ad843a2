"""The part of a conversation's fold that clients need: head, runs, open approval requests. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime

from banksman.bus.storage.log import StoredCommit
from banksman.contracts import approvals, events
from banksman.runtime.tracing import trace_id_of

PARKED = frozenset({"awaiting_approval", "awaiting_input"})
"""The statuses of runs that wait for a user."""


@dataclass(slots=True)
class RunView:
    run_id: str
    status: events.RunStatus | events.Outcome
    asked_at: datetime
    first_seq: int = 0
    """Number of its first event; 0 while it has none."""
    message_id: str | None = None
    model: str | None = None
    started_at: datetime | None = None
    iterations: int = 0
    finished_at: datetime | None = None
    trace_id: str | None = None
    """Id of the client's trace that includes the run; None without one."""
    finished_in: int = 0
    """Stream sequence of the commit with its `run.finished`; 0 while it is open."""
    last_seq: int = 0
    """Number of its `run.finished`; 0 while it is open."""


@dataclass(frozen=True, slots=True)
class UndecidedApproval:
    run_id: str
    requested: approvals.ApprovalRequested


@dataclass(frozen=True, slots=True)
class RememberedDecision:
    """A decision that applies to further calls like those of its request."""

    run_id: str
    requested: approvals.ApprovalRequested
    resolved: approvals.ApprovalResolved
    at: datetime


@dataclass(frozen=True, slots=True)
class OpenInput:
    """A workflow's request for a value that no user has provided."""

    run_id: str
    requested: approvals.InputRequested


@dataclass
class ConversationView:
    stream_seq: int = 0
    log_epoch: str = ""
    oldest_seq: int = 1
    last_seq: int = 0
    last_ts: datetime | None = None
    title: str = ""
    deleted: bool = False
    runs: dict[str, RunView] = field(default_factory=dict[str, RunView])
    approvals: dict[str, UndecidedApproval] = field(default_factory=dict[str, UndecidedApproval])
    """Open approval requests by approval id."""
    remembered: dict[str, RememberedDecision] = field(default_factory=dict[str, RememberedDecision])
    """Decisions that apply to further calls, by approval id."""
    inputs: dict[str, OpenInput] = field(default_factory=dict[str, OpenInput])
    """Open requests for a value by request id."""
    outputs: dict[str, int] = field(default_factory=dict[str, int])
    """Maps a tool call id to the stream sequence of the commit with its result."""
    _cancelled_early: dict[str, int] = field(default_factory=dict[str, int])
    """Maps the id of a run without any other event to the number of its `run.cancel_requested`."""
    _last_seqs: list[int] = field(default_factory=list[int])
    _stream_seqs: list[int] = field(default_factory=list[int])

    @property
    def open_run(self) -> RunView | None:
        """The run that works or waits for a user, else the first queued run; None if all runs have ended."""
        open_runs = [run for run in self.runs.values() if not run.finished_in]
        active = [run for run in open_runs if run.status != "queued" and run.started_at]
        return next(iter(active or open_runs), None)

    @property
    def queued(self) -> int:
        """The number of runs that wait for another run of the conversation."""
        return sum(not run.finished_in and run.started_at is None for run in self.runs.values())

    @property
    def status(self) -> str:
        """`idle`, or the status of the open run."""
        run = self.open_run
        return "idle" if run is None else run.status

    def position(self, after_seq: int) -> int:
        """Return the stream sequence of the last commit whose events all have numbers up to `after_seq`."""
        index = bisect_right(self._last_seqs, after_seq)
        return self._stream_seqs[index - 1] if index else 0

    def before_newest(self, count: int) -> int:
        """Return the number of the event before the newest `count` runs and all runs that overlap them.

        0 if these are all runs.
        """
        runs = sorted(self.runs.values(), key=lambda run: run.first_seq)
        if count >= len(runs):
            return 0
        first = runs[-count].first_seq
        for run in reversed(runs[:-count]):
            if not run.last_seq or run.last_seq > first:
                first = run.first_seq
        return first - 1

    def apply(self, stored: StoredCommit) -> None:
        commit = stored.commit
        if not self._stream_seqs:
            self.oldest_seq = commit.first_seq
        for event in commit.events:
            self._apply(event, stored.stream_seq)
        self.stream_seq, self.log_epoch = stored.stream_seq, commit.log_epoch
        self.last_seq, self.last_ts = commit.last_seq, commit.ts
        self._last_seqs.append(commit.last_seq)
        self._stream_seqs.append(stored.stream_seq)

    def _apply(self, event: events.Event, stream_seq: int) -> None:
        match event.data:
            case events.ConversationUpdated() as updated:
                self.title = self.title if updated.title is None else updated.title
                self.deleted = self.deleted or updated.status == "deleted"
            case approvals.ApprovalForgotten(approval_id=approval_id):
                self.remembered.pop(approval_id, None)
            case events.ToolCallCompleted(result=result):
                self.outputs[result.tool_call_id] = stream_seq
            case events.UnknownEvent():
                pass
            case events.CancelRequested() if event.run_id is not None and event.run_id not in self.runs:
                # The run may only be queued. In a log of an earlier version it may not exist at all.
                self._cancelled_early.setdefault(event.run_id, event.seq)
            case _ if event.run_id is not None:
                self._apply_to_run(self._run(event, event.run_id), event, stream_seq)
            case _:
                pass

    def _run(self, event: events.Event, run_id: str) -> RunView:
        if run_id not in self.runs:
            cancelled_at = self._cancelled_early.pop(run_id, None)
            status = "queued" if cancelled_at is None else "cancelling"
            self.runs[run_id] = RunView(run_id, status, event.ts, cancelled_at or event.seq)
        return self.runs[run_id]

    def _apply_to_run(self, run: RunView, event: events.Event, stream_seq: int) -> None:
        match event.data:
            case events.RunQueued() as queued:
                run.message_id, run.model = queued.message_id, queued.settings.model
                run.trace_id = trace_id_of(queued.settings.traceparent)
            case events.RunStarted() as started:
                run.status = "cancelling" if run.status == "cancelling" else "running"
                run.message_id, run.model = started.message_id, started.settings.model
                run.trace_id = trace_id_of(started.settings.traceparent)
                run.started_at = event.ts
            case events.IterationStarted(n=n):
                run.iterations = n
            case events.CancelRequested():
                run.status = run.status if run.finished_in else "cancelling"
            case events.RunFinished() as finished:
                self._finish(run, finished, event, stream_seq)
            case approvals.ApprovalRequested() as requested:
                self.approvals[requested.approval_id] = UndecidedApproval(run.run_id, requested)
            case approvals.ApprovalResolved(approval_id=approval_id) as resolved:
                decided = self.approvals.pop(approval_id, None)
                if decided is not None and resolved.remember is not None and not event.imported:
                    self.remembered[approval_id] = RememberedDecision(
                        run.run_id, decided.requested, resolved, event.ts
                    )
            case approvals.InputRequested(request_id=request_id) as wanted:
                self.inputs[request_id] = OpenInput(run.run_id, wanted)
            case approvals.InputResolved(request_id=request_id):
                self.inputs.pop(request_id, None)
            case _:
                return
        self._update_status(run)

    def _finish(
        self, run: RunView, finished: events.RunFinished, event: events.Event, stream_seq: int
    ) -> None:
        run.status, run.iterations, run.model = finished.status, finished.iterations, finished.model
        run.finished_at, run.finished_in, run.last_seq = event.ts, stream_seq, event.seq
        self.approvals = {key: open_ for key, open_ in self.approvals.items() if open_.run_id != run.run_id}
        self.inputs = {key: open_ for key, open_ in self.inputs.items() if open_.run_id != run.run_id}
        self.remembered = {
            key: one
            for key, one in self.remembered.items()
            if one.resolved.remember == "conversation" or one.run_id != run.run_id
        }

    def _update_status(self, run: RunView) -> None:
        if run.finished_in or run.started_at is None or run.status == "cancelling":
            return
        if any(approval.run_id == run.run_id for approval in self.approvals.values()):
            run.status = "awaiting_approval"
        elif any(wanted.run_id == run.run_id for wanted in self.inputs.values()):
            run.status = "awaiting_input"
        else:
            run.status = "running"
