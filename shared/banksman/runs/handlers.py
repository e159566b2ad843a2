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
from banksman.runs.approvals import resolution, settled_by_system
from banksman.runs.owner import append
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation, QueuedRun
from banksman.runs.steps import never_started


async def on_decision(ports: Ports, reply: ApprovalReply) -> None:
    """Bring a stored (and checked) answer into the log, and the parked run back to work.

    Idempotent by `approval_id`.
    """
    while True:
        state = await ports.log.read(reply.tenant, reply.conversation_id)
        run = state.run
        if run is None or run.approval is None or run.approval.request.approval_id != reply.approval_id:
            await wake_queue(ports, state)
            return
        if not run.waits:
            await _resume_if_parked(ports, state, reply.approval_id)
            return
        await append(ports, state, run.run_id, (resolution(reply),))


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
        if run.cancel is None:
            asked = CancelRequested(reason=signal.reason, by=signal.by)
            if state.owner is not None or not run.waits:
                await append(ports, state, run.run_id, (asked,))
                continue
            stored = await ports.approvals.settle(settled_by_system(ports, state, run, "cancelled"))
            await append(ports, state, run.run_id, (asked, resolution(stored)))
            continue
        if state.owner is not None:
            await ports.work.nudge(signal.tenant, signal.conversation_id)
            return
        if run.waits:
            stored = await ports.approvals.settle(settled_by_system(ports, state, run, "cancelled"))
            await append(ports, state, run.run_id, (resolution(stored),))
            continue
        await append(ports, state, run.run_id, ())


async def _cancel_waiting(ports: Ports, state: Conversation, signal: CancelRun) -> bool:
    """Cancel a run that is queued, or whose start has not been seen. True when nothing is left to do."""
    if signal.run_id in state.ended or signal.run_id in state.cancelled_early:
        return True
    queued = _queued(state, signal.run_id)
    if queued is not None:
        ended: EventBody = never_started(
            queued.settings, signal.reason or "The run was cancelled before it started."
        )
        return await append(ports, state, signal.run_id, (ended,)) is not None
    asked = CancelRequested(reason=signal.reason, by=signal.by)
    return await append(ports, state, signal.run_id, (asked,)) is not None


def _queued(state: Conversation, run_id: str) -> QueuedRun | None:
    return next((queued for queued in state.queue if queued.run_id == run_id), None)


async def on_steer(ports: Ports, signal: SteerRun) -> None:
    """Hand a message to the open run; where none is open, start one. Idempotent by `message_id`."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        run = state.run
        if run is None or run.cancel is not None or signal.start.run_id in state.ended:
            await ports.work.publish(signal.start)
            return
        known = {message.message_id for message in (*run.steering, *_user_messages(state))}
        bodies: tuple[EventBody, ...] = ()
        if signal.message_id not in known:
            bodies = (MessageCompleted(message_id=signal.message_id, role="user", content=signal.content),)
        if run.waits:
            stored = await ports.approvals.settle(settled_by_system(ports, state, run, "superseded"))
            bodies = (*bodies, resolution(stored))
        if not bodies or await append(ports, state, run.run_id, bodies) is not None:
            state = await ports.log.read(signal.tenant, signal.conversation_id)
            await _resume_if_parked(ports, state, signal.message_id)
            return


def _user_messages(state: Conversation) -> list[UserMessage]:
    return [message for message in state.history if isinstance(message, UserMessage)]


async def on_rename(ports: Ports, signal: RenameConversation) -> None:
    """Give a conversation a title. The last one counts; repeating it changes nothing."""
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        if state.title == signal.title or await append(
            ports, state, None, (ConversationUpdated(title=signal.title),)
        ):
            return


async def on_delete(ports: Ports, signal: DeleteConversation) -> bool:
    """Leave a tombstone; what is open ends because of it.

    Returns:
        True when nothing is open any more and the log may be purged; False to be asked again later.
    """
    while True:
        state = await ports.log.read(signal.tenant, signal.conversation_id)
        if not state.deleted:
            await append(ports, state, None, (ConversationUpdated(status="deleted"),))
            continue
        if state.run is None:
            await wake_queue(ports, state)
            return not state.queue
        cancel = CancelRun(
            tenant=signal.tenant,
            conversation_id=signal.conversation_id,
            run_id=state.run.run_id,
            reason="The conversation was deleted.",
            by=signal.by,
        )
        await on_cancel(ports, cancel)
        return False


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
    return ResumeRun(tenant=state.tenant, conversation_id=state.conversation_id, run_id=run_id, cause=cause)
