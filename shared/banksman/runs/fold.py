"""The fold: applies commits to the state of a conversation. Pure.

`apply_commit(state, ...)` returns the next state. Every process that folds the same log gets the same state,
so ownership, the open run, its calls and the history need no storage of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import assert_never

from banksman.contracts.assistants import Branch
from banksman.contracts.events import (
    ApprovalForgotten,
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
    ProtocolRetry,
    RunFinished,
    RunQueued,
    RunStarted,
    ToolCallCompleted,
    ToolCallRequested,
    TrackedCall,
    UnknownEvent,
    WorkflowLinked,
    WorkflowOutput,
    WorkflowProgress,
    WorkspaceChanged,
    WorkspaceRestored,
)
from banksman.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from banksman.contracts.tools import ToolResult
from banksman.runs.branches import Paths
from banksman.runs.history import compacted, restored_note, user_message_ids, with_results
from banksman.runs.state import (
    CLOSED_UNDECIDED,
    CRASH_LOOP_CLAIMS,
    Conversation,
    Measured,
    OpenApproval,
    OpenCall,
    QueuedRun,
    Run,
    replace,
    with_ids,
    without_id,
)


def apply_commit(state: Conversation, stream_seq: int, commit: Commit) -> Conversation:
    """Return the state after one more commit. Apply commits in the order of the stream, each once."""
    if commit.snapshot is not None:
        return replace(state, stream_seq=stream_seq, snapshot_seq=stream_seq, since_snapshot=0)
    state = _apply_owner(state, commit)
    return replace(
        apply_events(state, commit.events),
        stream_seq=stream_seq,
        log_epoch=commit.log_epoch,
        last_seq=commit.last_seq,
        since_snapshot=state.since_snapshot + 1,
    )


def _apply_owner(state: Conversation, commit: Commit) -> Conversation:
    return replace(
        state,
        run=_clocked(state, commit),
        owner=commit.owner,
        owner_epoch=commit.owner_epoch,
        claims_in_row=_claims_in_row(state, commit),
        claimants=_claimants(state, commit),
    )


def _claims_in_row(state: Conversation, commit: Commit) -> int:
    # The limit sticks: otherwise the first commit that winds the run down would clear it, and the next owner
    # would continue a run that is half ended.
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        return state.claims_in_row
    if not commit.claim:
        return 0
    if commit.events:
        return 1
    # A process that claims a second time is alive: on a machine without a free CPU, agents that get none for
    # the length of a claim take a run over from each other, and none of them has crashed.
    alive = commit.owner is not None and commit.owner.agent in state.claimants
    return state.claims_in_row + (not commit.after_reconnect and not alive)


def _claimants(state: Conversation, commit: Commit) -> frozenset[str]:
    if not commit.claim or commit.owner is None:
        return frozenset()
    agent = frozenset({commit.owner.agent})
    return agent if commit.events else state.claimants | agent


def _clocked(state: Conversation, commit: Commit) -> Run | None:
    """Return the open run; the clock of its time limit stops while the run is parked."""
    run = state.run
    if run is None:
        return None
    if commit.claim and run.parked_at is not None:
        waited = max(0.0, (commit.ts - run.parked_at).total_seconds())
        return replace(run, parked_at=None, waited_s=run.waited_s + waited)
    if commit.owner is None and state.owner is not None:
        return replace(run, parked_at=commit.ts)
    return run


def apply_events(state: Conversation, events: Iterable[Event]) -> Conversation:
    """Return the state after events, with ownership unchanged."""
    # Results that follow each other are added in one step: each step copies all calls of the reply, and a
    # model may request any number of them.
    for results, group in groupby(events, lambda event: isinstance(event.data, ToolCallCompleted)):
        if results:
            state = _complete_calls(state, group)
        else:
            for event in group:
                state = _apply_event(state, event)
    return state


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
        case ApprovalForgotten(approval_id=approval_id):
            run = state.run and replace(state.run, remembered=_without(state.run.remembered, approval_id))
            return replace(state, run=run, remembered=_without(state.remembered, approval_id))
        case ConversationUpdated():
            return _update(state, event, data)
        case WorkflowProgress():
            run = state.run and replace(state.run, progress=data, progress_at=event.ts)
            return replace(state, run=run)
        case WorkflowLinked():
            return replace(state, linked=with_ids(state.linked, data.workflow_run_id, at=event.ts))
        case HistoryCompacted():
            return _compact(state, event, data)
        case ToolCallCompleted():
            return _complete_calls(state, (event,))
        # The result of its step, in the same commit, holds what a user provided.
        case WorkspaceChanged() | WorkflowOutput() | InputResolved() | UnknownEvent():
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
    | InputRequested
    | WorkspaceRestored
)


def _apply_to_run(state: Conversation, run: Run, data: RunEvent) -> Conversation:
    match data:
        case IterationStarted():
            run = replace(run, iteration=data.n, asking=True, final=None, calls=(), approval=None, inputs=())
            return _flush_steering(replace(state, run=run))
        case MessageCompleted():
            return _message(state, run, data)
        case ProtocolRetry():
            return _retry(state, run, data)
        case ToolCallRequested():
            return _request_call(state, run, data)
        case ApprovalRequested():
            listed = {item.tool_call_id for item in data.items}
            calls = tuple(replace(c, gate="waiting") if c.call.id in listed else c for c in run.calls)
            return replace(state, run=replace(run, calls=calls, approval=OpenApproval(data)))
        case ApprovalResolved():
            return _resolve(state, run, data)
        case InputRequested(tool_call_id=step):
            calls = tuple(replace(c, gate="awaiting") if c.call.id == step else c for c in run.calls)
            return replace(state, run=replace(run, calls=calls, inputs=(*run.inputs, data)))
        case WorkspaceRestored():
            return _restore(state, run, data)
        case _:
            assert_never(data)


def _start(state: Conversation, event: Event, data: RunStarted) -> Conversation:
    run_id = event.run_id or ""
    message = UserMessage(message_id=data.message_id, content=data.message)
    cancel = CancelRequested(by="user") if run_id in state.cancelled_early else None
    run = Run(run_id, data.settings, message, event.ts, cancel=cancel)
    state = state if data.settings.branch is None else _branch(state, data.settings.branch)
    return replace(
        state,
        run=run,
        queue=tuple(queued for queued in state.queue if queued.run_id != run_id),
        cancelled_early=without_id(state.cancelled_early, run_id),
        history=(*state.history, message),
    )


def _branch(state: Conversation, branch: Branch) -> Conversation:
    paths = Paths(state.history, state.left).branched(branch.after)
    if paths.history == state.history:
        return state
    newest = state.compaction
    summarised = newest is not None and any(
        isinstance(message, UserMessage) and message.message_id == newest.message_id
        for message in paths.history
    )
    return replace(
        state,
        history=paths.history,
        left=paths.left,
        measured=None,
        compaction=newest if summarised else None,
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
    removed = user_message_ids(state.history[: data.kept_from])
    history = compacted(state.history, data, keep=None if run is None else run.message)
    return replace(
        state,
        history=history,
        left=Paths(history, state.left).pruned(),
        heard=with_ids(state.heard, *removed, at=event.ts),
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
    if data.partial:
        # No reply: the run ends for the reason that ended the stream, and never as completed.
        run = replace(run, answered_by=data.model, usage=run.usage + data.usage)
        return replace(state, run=run, history=(*state.history, reply))
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
    reply = AssistantMessage(
        message_id=data.message_id,
        content=data.reply,
        protocol="json_text",
        provider=data.provider,
        provider_state=data.provider_state,
    )
    correction = UserMessage(message_id=data.message_id, content=data.correction)
    run = replace(run, malformed=data.attempt, answered_by=data.model, usage=run.usage + data.usage)
    return replace(state, run=run, history=(*state.history, reply, correction))


def _request_call(state: Conversation, run: Run, data: ToolCallRequested) -> Conversation:
    *before, reply = state.history
    if not isinstance(reply, AssistantMessage):
        raise ValueError(f"{data.call.id}: a call without the reply that requested it")
    reply = reply.model_copy(update={"calls": (*reply.calls, data.call)})
    unreadable = data.arguments_error is not None and not data.over_limit
    malformed = run.malformed_before + 1 if unreadable else run.malformed
    call = OpenCall(data.call, arguments_error=data.arguments_error, over_limit=data.over_limit)
    run = replace(run, final=None, malformed=malformed, calls=(*run.calls, call))
    return replace(state, run=run, history=(*before, reply))


def _resolve(state: Conversation, run: Run, data: ApprovalResolved) -> Conversation:
    if run.approval is None or run.approval.request.approval_id != data.approval_id or not run.undecided:
        return state
    approval = replace(run.approval, resolved=data)
    calls = tuple(_decided(call, data) if call.gate == "waiting" else call for call in run.calls)
    run = replace(run, approval=approval, calls=calls)
    if data.outcome in CLOSED_UNDECIDED:
        return replace(state, run=run)
    if data.remember == "run":
        run = replace(run, remembered=(*run.remembered, approval))
    if data.remember == "conversation":
        state = replace(state, remembered=(*state.remembered, approval))
    return replace(state, run=run)


def _without(remembered: tuple[OpenApproval, ...], approval_id: str) -> tuple[OpenApproval, ...]:
    return tuple(one for one in remembered if one.request.approval_id != approval_id)


def _decided(call: OpenCall, resolved: ApprovalResolved) -> OpenCall:
    decision = next((d for d in resolved.decisions if d.tool_call_id == call.call.id), None)
    if resolved.outcome in CLOSED_UNDECIDED or decision is None:
        return replace(call, gate="withdrawn")
    if decision.decision == "reject":
        return replace(call, gate="rejected", reason=decision.reason)
    if decision.arguments is None:
        return replace(call, gate="approved")
    edited = call.call.model_copy(update={"arguments": decision.arguments})
    return replace(call, gate="approved", call=edited, edited=True)


def _complete_calls(state: Conversation, events: Iterable[Event]) -> Conversation:
    run = state.run
    if run is None:
        return state
    # A second result of the same call changes nothing: several owners may commit what a slot holds.
    open_calls = {call.call.id: call.call for call in run.open_calls}
    done: dict[str, ToolResult] = {}
    for event in events:
        if isinstance(event.data, ToolCallCompleted) and event.data.result.tool_call_id in open_calls:
            done.setdefault(event.data.result.tool_call_id, event.data.result)
    completed = [(open_calls[call_id], result) for call_id, result in done.items()]
    tracked = (
        TrackedCall(tool=call.name, params=call.arguments, result=result.content, iteration=run.iteration)
        for call, result in completed
    )
    calls = (
        replace(call, result=done[call.call.id]) if call.result is None and call.call.id in done else call
        for call in run.calls
    )
    added = (ToolMessage(name=call.name, result=result) for call, result in completed)
    run = replace(run, calls=tuple(calls), tracked=(*run.tracked, *tracked))
    return replace(state, run=run, history=with_results(state.history, added))


def _restore(state: Conversation, run: Run, data: WorkspaceRestored) -> Conversation:
    note = restored_note(run.message.message_id, data)
    term = max(state.restored_term, data.term)
    return replace(state, restored_term=term, run=replace(run, steering=(*run.steering, note)))


def _flush_steering(state: Conversation) -> Conversation:
    if state.run is None or not state.run.steering:
        return state
    run = replace(state.run, steering=())
    return replace(state, run=run, history=(*state.history, *state.run.steering))
