"""What agents do about signals and decisions, whoever owns the run.

Each handler is safe to run on every redelivery, by any agent, at the same time as the owner: it appends by
compare-and-set, leaves ownership as it is, and repeats its last step until somebody has claimed.
"""

from __future__ import annotations

from banksman.contracts.events import CancelRequested, ConversationUpdated, EventBody, MessageCompleted
from banksman.contracts.messages import UserMessage
from banksman.contracts.work import (
    ApprovalReply,
    CancelRun,
    DeleteConversation,
    RenameConversation,
    ResumeRun,
    SteerRun,
)
from banksman.runs.approvals import close, problem, resolution
from banksman.runs.delivery import queued_behind
from banksman.runs.owner import append, ask, open_question
from banksman.runs.ports import Ports
from banksman.runs.state import CLOSED_FOR_A_CAUSE, Conversation, QueuedRun
from banksman.runs.steps import cancelled, ending_of, never_started


async def on_decision(ports: Ports, reply: ApprovalReply) -> None:
    """Bring a stored answer into the log, and the parked run back to work. Idempotent by `approval_id`.

    An answer that must not be honoured goes to the dead letters, and the question is put again.
    """
    state = await ports.log.read(reply.tenant, reply.conversation_id)
    while True:
        question = open_question(state)
        if question is not None and question.approval_id != reply.approval_id:
            question = None
        reason = problem(reply, question, ports.signing_key)
        if reason is not None:
            await ports.approvals.discard(reply, reason)
            await ask(ports, state)
            return
        run = state.run
        if run is None or question is None:
            if reply.outcome not in CLOSED_FOR_A_CAUSE:
                await _resume_if_parked(ports, state, reply.approval_id)
            return
        resolved = await append(ports, state, run.run_id, (resolution(reply),))
        state = resolved or await ports.log.read(reply.tenant, reply.conversation_id)


async def on_expiry(ports: Ports, tenant: str, conversation_id: str, approval_id: str) -> None:
    """Close a question whose time is over. Idempotent by `approval_id`."""
    state = await ports.log.read(tenant, conversation_id)
    run = state.run
    question = open_question(state)
    if run is None or question is None or question.approval_id != approval_id:
        return
    await on_decision(ports, await close(ports, state, run, "expired"))


async def may_forget(ports: Ports, tenant: str, conversation_id: str, approval_id: str) -> bool:
    """Whether an approval has done all its work: its answer is in the log, and the run went on from it.

    A run that nobody woke is woken again.
    """
    state = await ports.log.read(tenant, conversation_id)
    question = open_question(state)
    if question is not None and question.approval_id == approval_id:
        return False
    run = state.run
    latest = run is not None and run.approval is not None and run.approval.request.approval_id == approval_id
    if latest and state.owner is None:
        await _resume_if_parked(ports, state, approval_id)
        return False
    return True


async def on_cancel(ports: Ports, signal: CancelRun) -> None:
    """End a run in whatever state it is. Idempotent by `run_id`."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        run = state.run
        if run is None or run.run_id != signal.run_id:
            if await _cancel_waiting(ports, state, signal):
                await wake_queue(ports, state)
                return
            continue
        if run.cancel is not None:
            await ports.work.nudge(signal.tenant, signal.conversation_id)
            return
        bodies: tuple[EventBody, ...] = (CancelRequested(reason=signal.reason, by=signal.by),)
        if state.owner is None and run.waits:
            bodies = (*bodies, resolution(await close(ports, state, run, "cancelled")))
        await append(ports, state, run.run_id, bodies)


async def _cancel_waiting(ports: Ports, state: Conversation, signal: CancelRun) -> bool:
    """Cancel a run that is queued, or whose start has not been seen. True when nothing is left to do."""
    if signal.run_id in state.ended or signal.run_id in state.cancelled_early:
        return True
    queued = _queued(state, signal.run_id)
    if queued is not None:
        ended: EventBody = never_started(queued.settings, cancelled(signal.reason))
        return await append(ports, state, signal.run_id, (ended,)) is not None
    asked = CancelRequested(reason=signal.reason, by=signal.by)
    return await append(ports, state, signal.run_id, (asked,)) is not None


def _queued(state: Conversation, run_id: str) -> QueuedRun | None:
    return next((queued for queued in state.queue if queued.run_id == run_id), None)


async def on_steer(ports: Ports, signal: SteerRun) -> None:
    """Hand a message to the open run; where none can take it, queue a run for it. Idempotent by `message_id`.

    The log decides which of the two it is, once: a repeat finds the message, or the run, and adds nothing.
    A run in its last iteration cannot hand it to the model any more: then it gets a run of its own, and a
    question that the open run waits with is superseded all the same.
    """
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        run = state.run
        if state.knows(signal.start.run_id):
            await _resume_if_parked(ports, state, signal.message_id)
            await wake_queue(ports, state)
            return
        if _was_heard(state, signal.message_id):
            await _resume_if_parked(ports, state, signal.message_id)
            return
        if run is None or ending_of(state, run, ports.clock.now()) is not None:
            await append(ports, state, signal.start.run_id, queued_behind(state, signal.start))
            continue
        if run.iteration >= run.settings.tools.max_iterations:
            if run.waits:
                answer = resolution(await close(ports, state, run, "superseded"))
                await append(ports, state, run.run_id, (answer,))
            else:
                await append(ports, state, signal.start.run_id, queued_behind(state, signal.start))
            continue
        steer = MessageCompleted(message_id=signal.message_id, role="user", content=signal.content)
        bodies: tuple[EventBody, ...] = (steer,)
        if run.waits:
            bodies = (*bodies, resolution(await close(ports, state, run, "superseded")))
        await append(ports, state, run.run_id, bodies)


def _was_heard(state: Conversation, message_id: str) -> bool:
    if message_id in state.heard:
        return True
    steering = state.run.steering if state.run is not None else ()
    said = (message for message in state.history if isinstance(message, UserMessage))
    return any(message.message_id == message_id for message in (*steering, *said))


async def on_rename(ports: Ports, signal: RenameConversation) -> None:
    """Give a conversation a title. Idempotent by `request_id`: a repeat brings no older title back."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        if state.title == signal.title or signal.request_id in state.renamed:
            return
        renamed = ConversationUpdated(title=signal.title, request_id=signal.request_id)
        if await append(ports, state, None, (renamed,)) is not None:
            return


async def on_delete(ports: Ports, signal: DeleteConversation) -> int | None:
    """Leave a tombstone; what is open ends because of it.

    Returns:
        Stream sequence of a tombstone behind which nothing is open: the log may be purged up to it. It stays,
        so that a start which is delivered late finds the conversation deleted, and so does what came after
        it meanwhile. None to be asked again later.
    """
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        over = state.run is None and not state.queue
        if not state.deleted or (over and state.tombstone != state.last_seq):
            await append(ports, state, None, (ConversationUpdated(status="deleted"),))
            continue
        if state.run is None:
            await wake_queue(ports, state)
            return state.stream_seq if over else None
        cancel = CancelRun(
            tenant=signal.tenant,
            conversation_id=signal.conversation_id,
            run_id=state.run.run_id,
            reason="The conversation was deleted.",
            by=signal.by,
        )
        await on_cancel(ports, cancel)
        return None


async def _resume_if_parked(ports: Ports, state: Conversation, cause: str) -> None:
    if state.run is not None and state.owner is None and not state.run.waits:
        await ports.work.publish(_resume(state, state.run.run_id, cause))
    elif state.run is not None and state.owner is not None:
        await ports.work.nudge(state.tenant, state.conversation_id)


async def wake_queue(ports: Ports, state: Conversation) -> None:
    """Start the next queued run when nobody is there to do it."""
    state = await ports.log.read(state.tenant, state.conversation_id)
    if state.run is None and state.queue:
        await ports.work.publish(_resume(state, state.queue[0].run_id, state.queue[0].run_id))


def _resume(state: Conversation, run_id: str, cause: str) -> ResumeRun:
    return ResumeRun(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run_id,
        cause=cause,
        owner_epoch=state.owner_epoch,
    )
