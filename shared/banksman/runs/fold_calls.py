"""How events of calls change the state of a conversation: requested, decided, completed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from banksman.contracts.approvals import ApprovalResolved, InputRequested, InputResolved
from banksman.contracts.events import Event, ToolCallCompleted, ToolCallRequested, TrackedCall
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage
from banksman.contracts.tools import ToolResult
from banksman.runs.state import CLOSED_UNDECIDED, Conversation, OpenCall, Run, replace


def request_call(state: Conversation, run: Run, data: ToolCallRequested) -> Conversation:
    *before, reply = state.history
    if not isinstance(reply, AssistantMessage):
        raise ValueError(f"{data.call.id}: a call without the reply that requested it")
    reply = reply.model_copy(update={"calls": (*reply.calls, data.call)})
    unreadable = data.arguments_error is not None and not data.over_limit
    malformed = run.malformed_before + 1 if unreadable else run.malformed
    call = OpenCall(data.call, arguments_error=data.arguments_error, over_limit=data.over_limit)
    run = replace(run, final=None, malformed=malformed, calls=(*run.calls, call))
    return replace(state, run=run, history=(*before, reply))


def resolve_approval(state: Conversation, run: Run, data: ApprovalResolved) -> Conversation:
    """Return the state with the decision on the open approval request; a second one changes nothing."""
    if run.approval is None or run.approval.request.approval_id != data.approval_id or not run.undecided:
        return state
    approval = replace(run.approval, resolved=data)
    open_at = (at for at, call in enumerate(run.calls) if call.gate == "waiting" and call.result is None)
    first = next(open_at, len(run.calls))
    calls = tuple(_decided(call, data, behind=at > first) for at, call in enumerate(run.calls))
    run = replace(run, approval=approval, calls=calls)
    if data.outcome in CLOSED_UNDECIDED or run.imported:
        return replace(state, run=run)
    if data.remember == "run":
        run = replace(run, remembered=(*run.remembered, approval))
    if data.remember == "conversation":
        state = replace(state, remembered=(*state.remembered, approval))
    return replace(state, run=run)


def _decided(call: OpenCall, resolved: ApprovalResolved, *, behind: bool) -> OpenCall:
    """Return a call after a resolution; `behind` states whether an earlier call waited for it."""
    if call.gate != "waiting":
        # No user approved the earlier call, and this one may build on it.
        skipped = behind and call.gate == "free" and call.result is None
        return replace(call, gate="withdrawn") if skipped and resolved.outcome in CLOSED_UNDECIDED else call
    decision = next((d for d in resolved.decisions if d.tool_call_id == call.call.id), None)
    if resolved.outcome in CLOSED_UNDECIDED or decision is None:
        return replace(call, gate="withdrawn")
    if decision.decision == "reject":
        return replace(call, gate="rejected", reason=decision.reason)
    if decision.arguments is None:
        return replace(call, gate="approved")
    edited = call.call.model_copy(update={"arguments": decision.arguments})
    return replace(call, gate="approved", call=edited, edited=True)


def await_input(run: Run, data: InputRequested) -> Run:
    calls = tuple(
        replace(call, gate="awaiting", attempt=data.attempt + 1)
        if call.call.id == data.tool_call_id
        else call
        for call in run.calls
    )
    return replace(run, calls=calls, inputs=(*run.inputs, data))


def resolve_input(run: Run, data: InputResolved) -> Run:
    """Return the run whose call continues with the answer; the same commit completes a workflow's step."""
    asked = {one.tool_call_id for one in run.inputs if one.request_id == data.request_id}
    calls = tuple(
        replace(call, gate="free", answer=data) if call.call.id in asked and call.gate == "awaiting" else call
        for call in run.calls
    )
    return replace(run, calls=calls)


def complete_calls(state: Conversation, events: Iterable[Event]) -> Conversation:
    """Return the state with the results of calls; the first result of each call counts."""
    run = state.run
    if run is None:
        return state
    # A second result of a call is ignored: several owners may commit the result of a slot.
    open_calls = {call.call.id: call.call for call in run.open_calls}
    edited = {call.call.id for call in run.open_calls if call.edited}
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
    added = (
        ToolMessage(name=call.name, result=result, executed=call.arguments if call.id in edited else None)
        for call, result in completed
    )
    run = replace(run, calls=tuple(calls), tracked=(*run.tracked, *tracked))
    return replace(state, run=run, history=_with_results(state.history, added))


def _with_results(history: tuple[Message, ...], added: Iterable[ToolMessage]) -> tuple[Message, ...]:
    """Add results in the order of their calls, which providers require; they complete in any order."""
    start = len(history)
    while start and isinstance(history[start - 1], ToolMessage):
        start -= 1
    reply = history[start - 1] if start else None
    calls = reply.calls if isinstance(reply, AssistantMessage) else ()
    places = {call.id: place for place, call in enumerate(calls)}
    results = [message for message in (*history[start:], *added) if isinstance(message, ToolMessage)]
    results.sort(key=lambda message: places.get(message.result.tool_call_id, len(places)))
    return (*history[:start], *results)
