"""The fold: applies commits to the state of a conversation. Pure.

`apply_commit(state, ...)` returns the next state. Every process that folds the same log gets the same state,
so ownership, the open run, its calls and the history need no storage of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import Any, assert_never

from banksman.contracts import approvals, events
from banksman.contracts.assistants import Branch
from banksman.contracts.messages import AssistantMessage, UserMessage
from banksman.runs.fold_calls import (
    await_input,
    complete_calls,
    request_call,
    resolve_approval,
    resolve_input,
)
from banksman.runs.history import Paths, compacted, restored_note, user_message_ids
from banksman.runs.state import (
    CRASH_LOOP_CLAIMS,
    Conversation,
    Measured,
    OpenApproval,
    QueuedRun,
    Run,
    replace,
    with_ids,
    without_id,
)


def apply_commit(state: Conversation, stream_seq: int, commit: events.Commit) -> Conversation:
    """Return the state after one more commit. Apply commits in the order of the stream, each once."""
    if commit.snapshot is not None or commit.archive is not None:
        # The newest snapshot before an archive is archived too.
        newest = stream_seq if commit.snapshot is not None else 0
        return replace(state, stream_seq=stream_seq, snapshot_seq=newest, since_snapshot=0)
    return complete_commit(state, apply_events(state, commit.events), stream_seq, commit)


def complete_commit(
    before: Conversation, folded: Conversation, stream_seq: int, commit: events.Commit
) -> Conversation:
    """Return the state after a commit; `folded` is `before` after the events of the commit."""
    return replace(
        folded,
        **owner_changes(before, folded, commit),
        stream_seq=stream_seq,
        log_epoch=commit.log_epoch,
        last_seq=commit.last_seq,
        since_snapshot=before.since_snapshot + 1,
    )


def apply_events(state: Conversation, batch: Iterable[events.Event]) -> Conversation:
    # Results that follow each other are added in one step: each step copies all calls of the reply, and a
    # model may request any number of them.
    batch = tuple(batch)
    for results, group in groupby(batch, lambda event: isinstance(event.data, events.ToolCallCompleted)):
        if results:
            state = complete_calls(state, group)
        else:
            for event in group:
                state = _apply_event(state, event)
    imported = sum(event.imported for event in batch)
    return replace(state, imported=state.imported + imported) if imported else state


def _apply_event(state: Conversation, event: events.Event) -> Conversation:
    data = event.data
    match data:
        case events.RunQueued():
            queued = QueuedRun(
                event.run_id or "", data.message_id, data.message, data.settings, data.provenance
            )
            return replace(state, queue=(*state.queue, queued))
        case events.RunStarted():
            return _start(state, event, data)
        case events.RunFinished():
            return _finish(state, event)
        case events.CancelRequested():
            return _cancel(state, event, data)
        case approvals.ApprovalForgotten(approval_id=approval_id):
            run = state.run and replace(state.run, remembered=_without(state.run.remembered, approval_id))
            return replace(state, run=run, remembered=_without(state.remembered, approval_id))
        case events.ConversationUpdated():
            return _update(state, event, data)
        case events.WorkflowProgress():
            run = state.run and replace(state.run, progress=data, progress_at=event.ts)
            return replace(state, run=run)
        case events.WorkflowLinked():
            return replace(state, linked=with_ids(state.linked, data.workflow_run_id, at=event.ts))
        case events.HistoryCompacted():
            return _compact(state, event, data)
        case events.ToolCallCompleted():
            return complete_calls(state, (event,))
        case (
            events.WorkspaceChanged()
            | events.WorkflowOutput()
            | events.HistoryCut()
            | events.ModelNotice()
            | events.ReasoningCompleted()
            | events.UnknownEvent()
        ):
            return state
        case _:
            return state if state.run is None else _apply_to_run(state, state.run, data, event.ts)


RunEvent = (
    events.IterationStarted
    | events.MessageCompleted
    | events.ProtocolRetry
    | events.ToolCallRequested
    | approvals.ApprovalRequested
    | approvals.ApprovalResolved
    | approvals.ApprovalEscalated
    | approvals.InputRequested
    | approvals.InputResolved
    | events.WorkspaceRestored
)


def _apply_to_run(state: Conversation, run: Run, data: RunEvent, at: datetime) -> Conversation:
    match data:
        case events.IterationStarted():
            run = replace(
                run,
                iteration=data.n,
                asking=True,
                asked_at=at,
                compactions=0,
                final=None,
                calls=(),
                approval=None,
                inputs=(),
            )
            return _flush_steering(replace(state, run=run))
        case events.MessageCompleted():
            return _message(state, run, data)
        case events.ProtocolRetry():
            return _retry(state, run, data)
        case events.ToolCallRequested():
            return request_call(state, run, data)
        case approvals.ApprovalRequested():
            listed = {item.tool_call_id for item in data.items}
            calls = tuple(replace(c, gate="waiting") if c.call.id in listed else c for c in run.calls)
            return replace(state, run=replace(run, calls=calls, approval=OpenApproval(data)))
        case approvals.ApprovalResolved():
            return resolve_approval(state, run, data)
        case approvals.ApprovalEscalated(approval_id=approval_id):
            approval = run.approval
            if approval is not None and approval.request.approval_id == approval_id:
                approval = replace(approval, escalated=True)
            return replace(state, run=replace(run, approval=approval))
        case approvals.InputRequested():
            return replace(state, run=await_input(run, data))
        case approvals.InputResolved():
            return replace(state, run=resolve_input(run, data))
        case events.WorkspaceRestored():
            return _restore(state, run, data)
        case _:
            assert_never(data)


def _without(remembered: tuple[OpenApproval, ...], approval_id: str) -> tuple[OpenApproval, ...]:
    return tuple(one for one in remembered if one.request.approval_id != approval_id)


def _start(state: Conversation, event: events.Event, data: events.RunStarted) -> Conversation:
    run_id = event.run_id or ""
    message = UserMessage(message_id=data.message_id, content=data.message, provenance=data.provenance)
    cancel = events.CancelRequested(by="user") if run_id in state.cancelled_early else None
    run = Run(run_id, data.settings, message, event.ts, cancel=cancel, imported=event.imported)
    state = state if data.settings.branch is None else _branch(state, data.settings.branch)
    return replace(
        state,
        run=run,
        queue=tuple(queued for queued in state.queue if queued.run_id != run_id),
        cancelled_early=without_id(state.cancelled_early, run_id),
        history=state.history if data.settings.compact else (*state.history, message),
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


def _finish(state: Conversation, event: events.Event) -> Conversation:
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


def _cancel(state: Conversation, event: events.Event, data: events.CancelRequested) -> Conversation:
    run_id = event.run_id or ""
    if state.run is not None and state.run.run_id == run_id:
        return replace(state, run=replace(state.run, cancel=state.run.cancel or data))
    if run_id in state.ended:
        return state
    return replace(state, cancelled_early=with_ids(state.cancelled_early, run_id, at=event.ts))


def _update(state: Conversation, event: events.Event, data: events.ConversationUpdated) -> Conversation:
    title = state.title if data.title is None else data.title
    tombstone = event.seq if data.status == "deleted" else state.tombstone
    renamed = with_ids(state.renamed, data.request_id, at=event.ts) if data.request_id else state.renamed
    return replace(state, title=title, tombstone=tombstone, renamed=renamed)


def _compact(state: Conversation, event: events.Event, data: events.HistoryCompacted) -> Conversation:
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
        run=None
        if run is None
        else replace(run, usage=run.usage + data.usage, compactions=run.compactions + 1),
    )


def _message(state: Conversation, run: Run, data: events.MessageCompleted) -> Conversation:
    if data.role == "user":
        steer = UserMessage(
            message_id=data.message_id, content=data.content or "", provenance=data.provenance
        )
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
        # A partial message is no reply: the run ends for the reason that ended the stream, not as completed.
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


def _retry(state: Conversation, run: Run, data: events.ProtocolRetry) -> Conversation:
    if run.imported:
        return state  # Exports do not contain what the model wrote.
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


def _restore(state: Conversation, run: Run, data: events.WorkspaceRestored) -> Conversation:
    if run.imported:
        return state  # It was another workspace.
    note = restored_note(run.message.message_id, data)
    term = max(state.restored_term, data.term)
    return replace(state, restored_term=term, run=replace(run, steering=(*run.steering, note)))


def _flush_steering(state: Conversation) -> Conversation:
    if state.run is None or not state.run.steering:
        return state
    run = replace(state.run, steering=())
    return replace(state, run=run, history=(*state.history, *state.run.steering))


def owner_changes(before: Conversation, folded: Conversation, commit: events.Commit) -> dict[str, Any]:
    """Return what a commit changes besides its events: the owner, claims in a row, and the run's clock."""
    return {
        "run": _clocked(before, folded.run, commit),
        "owner": commit.owner,
        "owner_epoch": commit.owner_epoch,
        "claims_in_row": 0 if _ends_open_run(before, commit) else _claims_in_row(before, commit),
        "claimants": _claimants(before, commit),
    }


def _ends_open_run(before: Conversation, commit: events.Commit) -> bool:
    ended = {event.run_id for event in commit.events if isinstance(event.data, events.RunFinished)}
    if not ended:
        return False
    # Not a queued run that is cancelled: the open run may still be in a crash loop.
    started = {event.run_id for event in commit.events if isinstance(event.data, events.RunStarted)}
    return not ended.isdisjoint(started if before.run is None else started | {before.run.run_id})


def _claims_in_row(state: Conversation, commit: events.Commit) -> int:
    # The count stays at the limit until the run has ended. Otherwise the first commit that ends the run would
    # reset the count, and the next owner would continue a half-ended run.
    if state.claims_in_row >= CRASH_LOOP_CLAIMS:
        return state.claims_in_row
    if not commit.claim:
        return 0
    if commit.events:
        return 1
    # A process that claims a second time has not crashed. On an overloaded machine, agents without CPU time
    # for the length of a claim take over a run from each other.
    alive = commit.owner is not None and commit.owner.agent in state.claimants
    return state.claims_in_row + (not commit.after_reconnect and not alive)


def _claimants(state: Conversation, commit: events.Commit) -> frozenset[str]:
    if not commit.claim or commit.owner is None:
        return frozenset()
    agent = frozenset({commit.owner.agent})
    return agent if commit.events else state.claimants | agent


def _clocked(before: Conversation, run: Run | None, commit: events.Commit) -> Run | None:
    """Return the open run; the clock of its time limit stops while the run is parked."""
    if run is None or before.run is None or run.run_id != before.run.run_id:
        return run
    if commit.claim and run.parked_at is not None:
        waited = max(0.0, (commit.ts - run.parked_at).total_seconds())
        return replace(run, parked_at=None, waited_s=run.waited_s + waited)
    if commit.owner is None and before.owner is not None:
        return replace(run, parked_at=commit.ts)
    return run
