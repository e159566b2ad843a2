"""The handlers of signals and approval replies. They need not own the run.

Each handler is safe on every redelivery, in any agent, concurrently with the owner: it appends by
compare-and-set, does not change ownership, and repeats its last step until the run has been claimed.
"""

from __future__ import annotations

from banksman.contracts import work
from banksman.contracts.approvals import ApprovalEscalated, ApprovalForgotten
from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import (
    CancelRequested,
    ConversationUpdated,
    EventBody,
    MessageCompleted,
    RunFinished,
    RunStarted,
)
from banksman.contracts.ids import attempt_id
from banksman.runs.approval import requests
from banksman.runs.arrivals import batch, queued
from banksman.runs.history import user_message_ids
from banksman.runs.outcome import never_started
from banksman.runs.owner import append, append_imported, append_parts, part
from banksman.runs.ports import Ports
from banksman.runs.state import CLOSED_BY_SIGNAL, Conversation, Run
from banksman.runs.steps import DELETED, cancelled, ending_of

Ordered = work.SteerRun | work.ImportConversation | work.ImportEvents | work.CancelRun
"""The signals that are handled in the order in which they are stored."""
ENDED_AT_ONCE = 500
"""Queued runs that one commit of a deletion ends."""


async def on_decision(ports: Ports, reply: work.ApprovalReply) -> None:
    """Commit a stored reply and resume the parked run. Idempotent by `approval_id`.

    An invalid reply is dead-lettered, and the approval request is published again.
    """
    state = await ports.log.read(reply.tenant, reply.conversation_id)
    while True:
        request = requests.open_request(state, reply.approval_id)
        reason = requests.problem(reply, request, ports.signing_key)
        if reason is not None:
            await ports.approvals.discard_reply(reply, reason)
            await requests.publish_requests(ports, state)
            return
        run = state.run
        if run is None or request is None:
            # A cancel or a message that closed the request resumes the run itself, after the commit of its
            # cause.
            if reply.outcome not in CLOSED_BY_SIGNAL:
                await _resume_if_parked(ports, state, reply.approval_id)
            return
        resolved = await append(ports, state, run.run_id, requests.resolution(reply, request))
        # An owned run needs no resume, but only the stored state shows that: the next round reads it.
        state = resolved or await ports.log.read(reply.tenant, reply.conversation_id)


async def on_expiry(ports: Ports, tenant: str, conversation_id: str, approval_id: str) -> None:
    """Close an approval request that has expired. Idempotent by `approval_id`."""
    state = await ports.log.read(tenant, conversation_id)
    request = requests.open_request(state, approval_id)
    if request is not None:
        await on_decision(ports, await requests.close_request(ports, request, "expired"))


async def on_escalation(
    ports: Ports, tenant: str, conversation_id: str, approval_id: str, *, by: str = requests.SYSTEM
) -> None:
    """Escalate an open approval request to further users, once. Idempotent by `approval_id`."""
    while True:
        state = await ports.log.read(tenant, conversation_id)
        run = state.run
        if run is None or run.approval is None or not run.undecided or run.approval.escalated:
            return
        request = run.approval.request
        if request.approval_id != approval_id or request.terms is None or request.terms.escalation is None:
            return
        users = request.terms.escalation.users
        escalated = ApprovalEscalated(approval_id=approval_id, users=users, by=by)
        if await append(ports, state, run.run_id, (escalated,)) is not None:
            return


async def may_remove(ports: Ports, tenant: str, conversation_id: str, approval_id: str) -> bool:
    """Return whether an approval may be removed: its reply is committed, and the run has continued after it.

    A run that is still parked with its decision is resumed again.
    """
    state = await ports.log.read(tenant, conversation_id)
    if requests.open_request(state, approval_id) is not None:
        return False
    if state.run is not None and approval_id in state.run.request_ids and state.owner is None:
        await _resume_if_parked(ports, state, approval_id)
        return False
    return True


async def earlier_first(
    ports: Ports, message: work.StartRun | work.RunSignal, stream_seq: int
) -> tuple[work.StartRun, ...]:
    """Record what waits and was stored before a message, in its order, except the last starts.

    Deliveries come in any order, to any agent. Returns the starts that are to be recorded next, before the
    message and directly after it, with that of the message itself.
    """
    after, starts = 0, list[work.StartRun]()
    while found := await ports.work.next(message.tenant, message.conversation_id, after=after):
        after, body = found
        if isinstance(body, work.StartRun):
            starts.append(body)
        elif isinstance(body, Ordered):
            if after >= stream_seq:
                break
            await _enqueue(ports, starts)
            starts.clear()
            await _handle(ports, body)
    return tuple(starts)


async def _enqueue(ports: Ports, starts: list[work.StartRun]) -> None:
    while starts:
        state = await ports.log.read(starts[0].tenant, starts[0].conversation_id)
        new = batch(state, starts)
        if not new:
            return
        await append_parts(ports, state, [queued(ports, one) for one in new])


async def _handle(ports: Ports, signal: Ordered) -> None:
    match signal:
        case work.SteerRun():
            await on_steer(ports, signal)
        case work.ImportConversation():
            await on_import(ports, signal)
        case work.ImportEvents():
            await on_import_events(ports, signal)
        case work.CancelRun():
            await on_cancel(ports, signal)


async def on_ordered(
    ports: Ports, signal: work.SteerRun | work.CancelRun | work.ImportEvents, stream_seq: int
) -> None:
    """Handle a signal after the messages that were stored before it. Idempotent."""
    starts = await earlier_first(ports, signal, stream_seq)
    if isinstance(signal, work.SteerRun):
        await _enqueue(ports, list(starts))
    await _handle(ports, signal)


async def on_cancel(ports: Ports, signal: work.CancelRun) -> None:
    """End a run in any state. Idempotent by `run_id`."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        run = state.run
        if run is None or run.run_id != signal.run_id:
            if await _cancel_waiting(ports, state, signal):
                await wake_queue(ports, state)
                return
            continue
        if run.cancel is not None:
            await ports.work.wake_owner(signal.tenant, signal.conversation_id)
            return
        bodies: tuple[EventBody, ...] = (CancelRequested(reason=signal.reason, by=signal.by),)
        if state.owner is None:
            for request in requests.open_requests(state):
                bodies = (
                    *bodies,
                    *requests.resolution(await requests.close_request(ports, request, "cancelled"), request),
                )
        if await append(ports, state, run.run_id, bodies) is not None:
            await _end_waiting_calls(ports, state, run)


async def _end_waiting_calls(ports: Ports, state: Conversation, run: Run) -> None:
    """Cancel the calls whose servers wait for a user, best effort: their runner ends them later by itself."""
    attempts = [attempt_id(one.tool_call_id, one.attempt) for one in run.open_inputs if one.attempt]
    workspace = run.settings.workspace or state.conversation_id
    placement = await ports.runners.place(state.tenant, workspace, None) if attempts else None
    if placement is not None:
        for attempt in attempts:
            await ports.runners.cancel(placement, state.tenant, attempt)


async def on_steer(ports: Ports, signal: work.SteerRun) -> None:
    """Add a message to the open run, or queue a run for it if none can take it. Idempotent by `message_id`.

    The log decides once which of the two happens: a repeat finds the message, or its run, and adds nothing. A
    run in its last iteration has no further model request, so the message gets a run of its own, as it does
    during a compaction; an approval request that the open run waits for is superseded in both cases.
    """
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        run = state.run
        if state.knows(signal.start.run_id):
            await _resume_if_parked(ports, state, signal.message_id)
            await wake_queue(ports, state)
            return
        if _has_message(state, signal.message_id):
            await _resume_if_parked(ports, state, signal.message_id)
            return
        compacts = run is not None and run.settings.compact
        if run is None or compacts or ending_of(state, run, ports.clock.now()) is not None:
            await append_parts(ports, state, (queued(ports, signal.start),))
            continue
        bodies: tuple[EventBody, ...] = ()
        if (request := requests.open_approval_request(state)) is not None:
            bodies = requests.resolution(await requests.close_request(ports, request, "superseded"), request)
        if run.iteration < run.settings.tools.max_iterations:
            steer = MessageCompleted(
                message_id=signal.message_id,
                role="user",
                content=signal.content,
                provenance=signal.start.provenance,
            )
            await append(ports, state, run.run_id, (steer, *bodies))
        elif bodies:
            await append(ports, state, run.run_id, bodies)
        else:
            await append_parts(ports, state, (queued(ports, signal.start),))


async def on_rename(ports: Ports, signal: work.RenameConversation) -> None:
    """Set a title. Idempotent by `request_id`: a repeat does not restore an older title."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        if state.title == signal.title or signal.request_id in state.renamed:
            return
        renamed = ConversationUpdated(title=signal.title, request_id=signal.request_id)
        if await append(ports, state, None, (renamed,)) is not None:
            return


async def on_forget(ports: Ports, signal: work.ForgetDecision) -> None:
    """Revoke a remembered decision for further calls. Idempotent by `approval_id`."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        remembered = (*state.remembered, *(state.run.remembered if state.run else ()))
        if all(one.request.approval_id != signal.approval_id for one in remembered):
            return
        forgotten = ApprovalForgotten(approval_id=signal.approval_id, by=signal.by)
        if await append(ports, state, None, (forgotten,)) is not None:
            return


async def on_delete(ports: Ports, signal: work.DeleteConversation) -> int | None:
    """Append a tombstone, and end what is open; all queued runs end with the tombstone.

    Returns the stream sequence of a tombstone after which nothing is open: the log may be purged up to it,
    but the tombstone stays, for a start that is delivered late. None asks for another call while a run is
    open.
    """
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        # A tombstone must be the last commit, because the purge keeps nothing before it.
        if not state.deleted or state.queue or (state.run is None and state.tombstone != state.last_seq):
            waiting = state.queue[:ENDED_AT_ONCE]
            ended = [part(one.run_id, never_started(one.settings, DELETED)) for one in waiting]
            await append_parts(ports, state, (*ended, part(None, ConversationUpdated(status="deleted"))))
            continue
        if state.run is None:
            return state.stream_seq
        cancel = work.CancelRun(
            tenant=signal.tenant,
            conversation_id=signal.conversation_id,
            run_id=state.run.run_id,
            reason="The conversation was deleted.",
            by=signal.by,
        )
        await on_cancel(ports, cancel)
        return None


async def on_import(ports: Ports, signal: work.ImportConversation) -> None:
    """Append the runs of an imported conversation, each as one commit. Idempotent by `run_id`."""
    for run in signal.runs:
        bodies = _imported(signal.settings, run)
        while True:
            state = await ports.log.read(signal.tenant, signal.conversation_id)
            if state.deleted or state.knows(run.run_id):
                break
            await append(ports, state, run.run_id, bodies)


def _imported(settings: RunSettings, run: work.ImportedRun) -> tuple[EventBody, ...]:
    own = settings.model_copy(update={"branch": run.branch, "model": run.model})
    replies = (
        MessageCompleted(
            message_id=reply.message_id, role="assistant", content=reply.content, model=run.model
        )
        for reply in run.replies
    )
    ended = RunFinished(
        status=run.status,
        content=run.replies[-1].content if run.replies else "",
        service=settings.service,
        model=run.model,
        iterations=len(run.replies),
    )
    asked = run.message
    return RunStarted(message_id=asked.message_id, message=asked.content, settings=own), *replies, ended


async def on_import_events(ports: Ports, signal: work.ImportEvents) -> None:
    """Append a part of an imported conversation as one commit. Idempotent by the numbers of its events."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        new = tuple(event for event in signal.events if event.seq > state.imported)
        if state.deleted or not new or await append_imported(ports, state, new) is not None:
            return


async def wake_queue(ports: Ports, state: Conversation) -> None:
    """Publish work for the next queued run if no run is open, because no owner will claim it."""
    state = await ports.log.read(state.tenant, state.conversation_id)
    if state.run is None and state.queue:
        await ports.work.publish(_resume(state, state.queue[0].run_id, state.queue[0].run_id))


async def _cancel_waiting(ports: Ports, state: Conversation, signal: work.CancelRun) -> bool:
    """Cancel a run that is queued or not in the log yet; return True when nothing is left to do."""
    if signal.run_id in state.ended or signal.run_id in state.cancelled_early:
        return True
    body: EventBody = CancelRequested(reason=signal.reason, by=signal.by)
    for waiting in state.queue:
        if waiting.run_id == signal.run_id:
            body = never_started(waiting.settings, cancelled(signal.reason))
    return await append(ports, state, signal.run_id, (body,)) is not None


def _has_message(state: Conversation, message_id: str) -> bool:
    if message_id in state.heard:
        return True
    steering = state.run.steering if state.run is not None else ()
    return message_id in user_message_ids((*steering, *state.history))


async def _resume_if_parked(ports: Ports, state: Conversation, cause: str) -> None:
    if state.run is None:
        return
    if state.owner is not None:
        await ports.work.wake_owner(state.tenant, state.conversation_id)
    elif not state.run.waits:
        await ports.work.publish(_resume(state, state.run.run_id, cause))


def _resume(state: Conversation, run_id: str, cause: str) -> work.ResumeRun:
    return work.ResumeRun(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run_id,
        cause=cause,
        # A later claim makes this message obsolete; see `claim.delivered_work`.
        owner_epoch=state.owner_epoch,
        workflow=state.run.settings.workflow_name if state.run is not None else None,
    )
