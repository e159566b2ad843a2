"""The fold: what a log says about its conversation.

Pure. `apply_commit(state, ...)` gives the next state; everything else (ownership, the open run, its calls,
the history for the model) is read off it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, assert_never

from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import (
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    Commit,
    ConversationUpdated,
    Event,
    HistoryCompacted,
    InputRequested,
    InputResolved,
    IterationStarted,
    MessageCompleted,
    Owner,
    ProtocolRetry,
    RunFinished,
    RunQueued,
    RunStarted,
    RunStatus,
    ToolCallCompleted,
    ToolCallRequested,
    TrackedCall,
    UnknownEvent,
    WorkflowLinked,
    WorkflowProgress,
    WorkspaceChanged,
    WorkspaceRestored,
)
from banksman.contracts.messages import AssistantMessage, Content, Message, ToolMessage, Usage, UserMessage
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.runs.compacted import compacted, user_message_ids
from banksman.runs.recent_ids import with_ids, without_id

NO_USAGE = Usage()

CRASH_LOOP_CLAIMS = 5
"""Claims in a row without another commit that end a run as `crash_loop`."""

CLOSED_FOR_A_CAUSE = frozenset({"cancelled", "superseded"})
"""Outcomes of a question that a cancel, a message or the end of its run closed. Whoever closed it brings the
run on: until the cause is in the log too, the model would be asked without knowing it."""
CLOSED_UNANSWERED = CLOSED_FOR_A_CAUSE | {"expired"}
"""Outcomes of a question that nobody decided."""

Gate = Literal["free", "waiting", "approved", "rejected", "withdrawn"]
"""
free       nobody needs to be asked
waiting    a person has not decided yet
approved   a person approved, perhaps with edited arguments
rejected   a person said no
withdrawn  the question was closed without an answer (expired, cancelled, superseded)
"""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the current iteration."""

    call: ToolCall
    """With the arguments that will be executed: edited ones replace the model's."""
    gate: Gate = "free"
    edited: bool = False
    reason: str | None = None
    """Why it was rejected, in the approver's words."""
    arguments_error: str | None = None
    """Why the model's arguments could not be read; such a call is never executed."""
    result: ToolResult | None = None


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """The question of the current iteration."""

    request: ApprovalRequested
    resolved: ApprovalResolved | None = None


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits behind another."""

    run_id: str
    message_id: str
    message: Content
    settings: RunSettings


@dataclass(frozen=True, slots=True)
class Run:
    """The open run."""

    run_id: str
    settings: RunSettings
    message: UserMessage
    started_at: datetime
    iteration: int = 0
    asking: bool = False
    """True from `iteration.started` until the model's reply is stored."""
    final: str | None = None
    """The model's answer, when its last reply held no call."""
    malformed: int = 0
    """Unreadable replies in a row."""
    malformed_before: int = 0
    answered_by: str = ""
    """`provider:model` of the last reply; empty before the first."""
    calls: tuple[OpenCall, ...] = ()
    """The calls of the current iteration, answered or not."""
    approval: OpenApproval | None = None
    cancel: CancelRequested | None = None
    steering: tuple[UserMessage, ...] = ()
    """Messages of the user that the model has not been given yet."""
    tracked: tuple[TrackedCall, ...] = ()
    usage: Usage = NO_USAGE
    parked_at: datetime | None = None
    waited_s: float = 0.0
    """Seconds it was parked; they do not count against its time."""
    remembered: tuple[OpenApproval, ...] = ()
    """Approvals whose decision holds for the rest of the run."""

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls that have no result yet."""
        return tuple(call for call in self.calls if call.result is None)

    @property
    def waits(self) -> bool:
        """True when an approval is asked and not decided."""
        return self.approval is not None and self.approval.resolved is None

    @property
    def status(self) -> RunStatus:
        """Where the run stands, for people."""
        if self.cancel is not None:
            return "cancelling"
        return "awaiting_approval" if self.waits else "running"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a vendor counted of one model request."""

    input_tokens: int
    messages: int
    """How many messages of the history, from its beginning, the request held."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that a log says, up to and including the commit at `stream_seq`."""

    tenant: str
    conversation_id: str
    log_epoch: str = ""
    stream_seq: int = 0
    """Stream sequence of the last commit; 0 for an empty log."""
    last_seq: int = 0
    """Number of the last event; 0 for an empty log."""
    owner: Owner | None = None
    owner_epoch: int = 0
    """The highest claim so far."""
    claims_in_row: int = 0
    """Claims without another commit between them. It stays at the limit until the run has ended: the commits
    that wind it down are no sign that it works again."""
    run: Run | None = None
    queue: tuple[QueuedRun, ...] = ()
    ended: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of the runs that have their terminal event, the old ones forgotten: see `recent_ids`."""
    cancelled_early: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of runs that were cancelled before their start was in the log, the old ones forgotten."""
    history: tuple[Message, ...] = ()
    """What the model is shown, valid for every provider between iterations."""
    remembered: tuple[OpenApproval, ...] = ()
    """Approvals whose decision holds for the conversation."""
    linked: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of the workflow runs that were started here and have logs of their own, the old ones forgotten."""
    compaction: HistoryCompacted | None = None
    """The newest one; its summary is the first message of the history."""
    heard: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of the users' messages that left the history by compaction, the old ones forgotten."""
    measured: Measured | None = None
    """The last request that a vendor counted, since the history was last compacted."""
    title: str = ""
    renamed: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Ids of the renamings that are in the log, the old ones forgotten."""
    tombstone: int = 0
    """Number of the last event that says the conversation was deleted; 0 while it is not."""
    restored_term: int = 0
    """The newest term of the workspace that is known to have begun with a loss; 0 for none."""
    snapshot_seq: int = 0
    """Stream sequence of the newest snapshot; 0 for none."""
    since_snapshot: int = 0
    """Commits after the newest snapshot."""

    @property
    def deleted(self) -> bool:
        """True once there is a tombstone."""
        return self.tombstone > 0

    def knows(self, run_id: str) -> bool:
        """True when the run was started, queued or ended."""
        is_open = self.run is not None and self.run.run_id == run_id
        return is_open or run_id in self.ended or any(queued.run_id == run_id for queued in self.queue)


def apply_commit(state: Conversation, stream_seq: int, commit: Commit) -> Conversation:
    """The state after one more commit. Commits are applied in the order of the stream, each once."""
    if commit.snapshot is not None:
        return replace(state, stream_seq=stream_seq, snapshot_seq=stream_seq, since_snapshot=0)
    state = _apply_owner(state, commit)
    state = apply_events(state, commit.events)
    return replace(
        state,
        stream_seq=stream_seq,
        log_epoch=commit.log_epoch,
        last_seq=commit.last_seq,
        since_snapshot=state.since_snapshot + 1,
    )


def apply_events(state: Conversation, events: Iterable[Event]) -> Conversation:
    """The state after these events; ownership is untouched."""
    for event in events:
        state = _apply_event(state, event)
    return state


def _apply_owner(state: Conversation, commit: Commit) -> Conversation:
    return replace(
        state,
        run=_clocked(state, commit),
        owner=commit.owner,
        owner_epoch=commit.owner_epoch,
        claims_in_row=_claims_in_row(state, commit),
    )


def _claims_in_row(state: Conversation, commit: Commit) -> int:
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        return state.claims_in_row
    if not commit.claim:
        return 0
    return 1 if commit.events else state.claims_in_row + 1


def _clocked(state: Conversation, commit: Commit) -> Run | None:
    """The open run, its clock stopped when it is parked and going on when it is claimed."""
    run = state.run
    if run is None:
        return None
    if commit.claim and run.parked_at is not None:
        waited = max(0.0, (commit.ts - run.parked_at).total_seconds())
        return replace(run, parked_at=None, waited_s=run.waited_s + waited)
    if commit.owner is None and state.owner is not None:
        return replace(run, parked_at=commit.ts)
    return run


def _apply_event(state: Conversation, event: Event) -> Conversation:
    data = event.data
    match data:
        case RunQueued():
            queued = QueuedRun(event.run_id or "", data.message_id, data.message, data.settings)
            return replace(state, queue=(*state.queue, queued))
        case RunStarted():
            return _start(state, event, data)
        case RunFinished():
            return _finish(state, event)
        case CancelRequested():
            return _cancel(state, event, data)
        case ConversationUpdated():
            return _update(state, event, data)
        case WorkflowLinked():
            return replace(state, linked=with_ids(state.linked, data.workflow_run_id, at=event.ts))
        case HistoryCompacted():
            return _compact(state, event, data)
        case WorkspaceChanged() | WorkflowProgress() | InputRequested() | InputResolved() | UnknownEvent():
            return state
        case _:
            return state if state.run is None else _apply_to_run(state, state.run, data)


RunEvent = (
    IterationStarted
    | MessageCompleted
    | ProtocolRetry
    | ToolCallRequested
    | ApprovalRequested
    | ApprovalResolved
    | ToolCallCompleted
    | WorkspaceRestored
)


def _apply_to_run(state: Conversation, run: Run, data: RunEvent) -> Conversation:
    match data:
        case IterationStarted():
            run = replace(run, iteration=data.n, asking=True, final=None, calls=(), approval=None)
            return _flush_steering(replace(state, run=run))
        case MessageCompleted():
            return _message(state, run, data)
        case ProtocolRetry():
            return _retry(state, run, data)
        case ToolCallRequested():
            return _request_call(state, run, data)
        case ApprovalRequested():
            asked = {item.tool_call_id for item in data.items}
            calls = tuple(replace(c, gate="waiting") if c.call.id in asked else c for c in run.calls)
            return replace(state, run=replace(run, calls=calls, approval=OpenApproval(data)))
        case ApprovalResolved():
            return _resolve(state, run, data)
        case ToolCallCompleted():
            return _complete_call(state, run, data.result)
        case WorkspaceRestored():
            return _tell_restored(state, run, data)
        case _:
            assert_never(data)


def _start(state: Conversation, event: Event, data: RunStarted) -> Conversation:
    run_id = event.run_id or ""
    message = UserMessage(message_id=data.message_id, content=data.message)
    cancel = CancelRequested(by="user") if run_id in state.cancelled_early else None
    run = Run(run_id, data.settings, message, event.ts, cancel=cancel)
    return replace(
        state,
        run=run,
        queue=tuple(queued for queued in state.queue if queued.run_id != run_id),
        cancelled_early=without_id(state.cancelled_early, run_id),
        history=(*state.history, message),
    )


def _finish(state: Conversation, event: Event) -> Conversation:
    run_id = event.run_id or ""
    state = replace(
        state,
        ended=with_ids(state.ended, run_id, at=event.ts),
        queue=tuple(queued for queued in state.queue if queued.run_id != run_id),
        cancelled_early=without_id(state.cancelled_early, run_id),
    )
    if state.run is None or state.run.run_id != run_id:
        return state
    return replace(_flush_steering(state), run=None, claims_in_row=0)


def _cancel(state: Conversation, event: Event, data: CancelRequested) -> Conversation:
    run_id = event.run_id or ""
    if state.run is not None and state.run.run_id == run_id:
        return replace(state, run=replace(state.run, cancel=state.run.cancel or data))
    if run_id in state.ended:
        return state
    return replace(state, cancelled_early=with_ids(state.cancelled_early, run_id, at=event.ts))


def _update(state: Conversation, event: Event, data: ConversationUpdated) -> Conversation:
    title = state.title if data.title is None else data.title
    tombstone = event.seq if data.status == "deleted" else state.tombstone
    renamed = with_ids(state.renamed, data.request_id, at=event.ts) if data.request_id else state.renamed
    return replace(state, title=title, tombstone=tombstone, renamed=renamed)


def _compact(state: Conversation, event: Event, data: HistoryCompacted) -> Conversation:
    run = state.run
    left = user_message_ids(state.history[: data.kept_from])
    return replace(
        state,
        history=compacted(state.history, data, keep=None if run is None else run.message),
        heard=with_ids(state.heard, *left, at=event.ts),
        compaction=data,
        measured=None,
        run=None if run is None else replace(run, usage=run.usage + data.usage),
    )


def _message(state: Conversation, run: Run, data: MessageCompleted) -> Conversation:
    if data.role == "user":
        steer = UserMessage(message_id=data.message_id, content=data.content or "")
        return replace(state, run=replace(run, steering=(*run.steering, steer)))
    text = data.content if isinstance(data.content, str) else None
    reply = AssistantMessage(
        message_id=data.message_id,
        content=text,
        protocol=data.protocol,
        provider=data.provider,
        provider_state=data.provider_state,
    )
    run = replace(
        run,
        asking=False,
        final=text or "",
        malformed=0,
        malformed_before=run.malformed,
        answered_by=data.model,
        usage=run.usage + data.usage,
    )
    counted = data.usage.input_tokens
    measured = Measured(counted, len(state.history)) if counted else state.measured
    return replace(state, run=run, history=(*state.history, reply), measured=measured)


def _retry(state: Conversation, run: Run, data: ProtocolRetry) -> Conversation:
    said = AssistantMessage(
        message_id=data.message_id,
        content=data.reply,
        protocol="json_text",
        provider=data.provider,
        provider_state=data.provider_state,
    )
    told = UserMessage(message_id=data.message_id, content=data.correction)
    run = replace(run, malformed=data.attempt, answered_by=data.model, usage=run.usage + data.usage)
    return replace(state, run=run, history=(*state.history, said, told))


def _request_call(state: Conversation, run: Run, data: ToolCallRequested) -> Conversation:
    *before, reply = state.history
    if not isinstance(reply, AssistantMessage):
        raise ValueError(f"{data.call.id}: a call without the reply that asked for it")
    reply = reply.model_copy(update={"calls": (*reply.calls, data.call)})
    malformed = run.malformed_before + 1 if data.arguments_error else run.malformed
    call = OpenCall(data.call, arguments_error=data.arguments_error)
    run = replace(run, final=None, malformed=malformed, calls=(*run.calls, call))
    return replace(state, run=run, history=(*before, reply))


def _resolve(state: Conversation, run: Run, data: ApprovalResolved) -> Conversation:
    if run.approval is None or run.approval.request.approval_id != data.approval_id or not run.waits:
        return state
    approval = replace(run.approval, resolved=data)
    calls = tuple(_decided(call, data) if call.gate == "waiting" else call for call in run.calls)
    run = replace(run, approval=approval, calls=calls)
    if data.outcome in CLOSED_UNANSWERED:
        return replace(state, run=run)
    if data.remember == "run":
        run = replace(run, remembered=(*run.remembered, approval))
    if data.remember == "conversation":
        state = replace(state, remembered=(*state.remembered, approval))
    return replace(state, run=run)


def _decided(call: OpenCall, resolved: ApprovalResolved) -> OpenCall:
    decision = next((d for d in resolved.decisions if d.tool_call_id == call.call.id), None)
    if resolved.outcome in CLOSED_UNANSWERED or decision is None:
        return replace(call, gate="withdrawn")
    if decision.decision == "reject":
        return replace(call, gate="rejected", reason=decision.reason)
    if decision.arguments is None:
        return replace(call, gate="approved")
    edited = call.call.model_copy(update={"arguments": decision.arguments})
    return replace(call, gate="approved", call=edited, edited=True)


def _complete_call(state: Conversation, run: Run, result: ToolResult) -> Conversation:
    done = next((c for c in run.calls if c.call.id == result.tool_call_id and c.result is None), None)
    if done is None:
        return state
    tracked = TrackedCall(
        tool=done.call.name, params=done.call.arguments, result=result.content, iteration=run.iteration
    )
    calls = tuple(replace(c, result=result) if c is done else c for c in run.calls)
    run = replace(run, calls=calls, tracked=(*run.tracked, tracked))
    return replace(state, run=run, history=_with_result(state.history, done.call.name, result))


def _with_result(history: tuple[Message, ...], name: str, result: ToolResult) -> tuple[Message, ...]:
    """Add a result, keeping the results behind a reply in the order of its calls."""
    start = len(history)
    while start and isinstance(history[start - 1], ToolMessage):
        start -= 1
    reply = history[start - 1] if start else None
    order = [call.id for call in reply.calls] if isinstance(reply, AssistantMessage) else []
    results = [message for message in history[start:] if isinstance(message, ToolMessage)]
    results.append(ToolMessage(name=name, result=result))
    results.sort(
        key=lambda m: order.index(m.result.tool_call_id) if m.result.tool_call_id in order else len(order)
    )
    return (*history[:start], *results)


def _tell_restored(state: Conversation, run: Run, data: WorkspaceRestored) -> Conversation:
    note = UserMessage(message_id=run.message.message_id, content=_restored_text(data))
    term = max(state.restored_term, data.term)
    return replace(state, restored_term=term, run=replace(run, steering=(*run.steering, note)))


def _restored_text(data: WorkspaceRestored) -> str:
    if data.reason is not None:
        what = f"The copy of the workspace could not be restored: {data.reason}. The workspace is empty now"
    elif data.snapshot_ts is None:
        what = "The machine with the workspace was lost, and there was no copy. The workspace is empty now"
    else:
        copied = f"{data.snapshot_ts:%Y-%m-%d %H:%M:%S} UTC"
        what = f"The workspace was restored from a copy of {copied}; changes after it are lost"
    lost = ", ".join(data.lost_calls) or "none known"
    return f"[{what}. Changes of these calls may be missing: {lost}. Check files before relying on them.]"


def _flush_steering(state: Conversation) -> Conversation:
    if state.run is None or not state.run.steering:
        return state
    run = replace(state.run, steering=())
    return replace(state, run=run, history=(*state.history, *state.run.steering))
