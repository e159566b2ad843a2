"""The handlers of an agent's messages. Each is safe to run twice. Suspect runs are driven one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, TypeAdapter

from banksman.agent.logs.archiver import Archiver
from banksman.agent.model.step import ModelStep
from banksman.bus.publish import is_behind
from banksman.bus.queues.handling import Done, Later, Leave, Outcome, WorkMessage, check_subject, decoded
from banksman.bus.storage.approval_slots import (
    ESCALATION_TIMER,
    EXPIRY_TIMER,
    REMOVAL_TIMER,
    ApprovalSlots,
    fired_timer,
)
from banksman.contracts import subjects
from banksman.contracts.assistants import Limits, ToolSettings
from banksman.contracts.errors import BanksmanError, Poison
from banksman.contracts.work import (
    ApprovalReply,
    ArchiveConversation,
    CancelRun,
    DeleteConversation,
    EscalateApproval,
    ForgetDecision,
    ImportConversation,
    ImportEvents,
    RenameConversation,
    RunSignal,
    RunWork,
    StartRun,
    SteerRun,
)
from banksman.runs import handlers
from banksman.runs.bus_ports import OwnerNotifications
from banksman.runs.claim import accept
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.owner import record_activity
from banksman.runs.ports import Ports
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation
from banksman.runtime.failpoints import reach
from banksman.runtime.tenants import TenantSettings

logger = logging.getLogger(__name__)

S = TypeVar("S", ToolSettings, Limits)

RUN_WORK: TypeAdapter[RunWork] = TypeAdapter(RunWork)
RUN_SIGNAL: TypeAdapter[RunSignal] = TypeAdapter(RunSignal)
APPROVAL_REPLY = TypeAdapter(ApprovalReply)
DELETE_RETRY_S = 0.5
"""Seconds until a deletion checks again whether the open run has ended."""
REMOVE_AFTER_S = 86_400.0
"""Seconds from the expiry of an approval until the approval and its reply are removed. Until then, the
refusal of a late decision contains the stored decision."""


class TimedApproval(BaseModel):
    tenant: str
    conversation_id: str
    approval_id: str


TIMED_APPROVAL = TypeAdapter(TimedApproval)


def is_quick(message: WorkMessage) -> bool:
    """Return whether the handler of a signal waits for no runner."""
    try:
        return not isinstance(decoded(RUN_SIGNAL, message), DeleteConversation | ArchiveConversation)
    except BanksmanError:
        return True


SUSPECT_CLAIMS = 2
"""Consecutive claims without another commit after which a run is suspected of killing its agents."""
ALONE_S = 5.0
"""Seconds that a suspect is driven alone. A suspect that has not killed its agent by then is cleared. A later
crash loop is ended only by the time limit of the run."""


def is_suspect(state: Conversation) -> bool:
    """Return whether two agents in a row stopped before they committed anything for the open run."""
    return state.run is not None and state.claims_in_row >= SUSPECT_CLAIMS


@dataclass(slots=True)
class Turn:
    """The time in which a run is driven; a suspect occupies the quarantine for it."""

    place: asyncio.Lock | None
    """None if the turn has ended, or the run is no suspect."""

    def end(self) -> None:
        """Give the place to the next suspect. Safe to repeat."""
        place, self.place = self.place, None
        if place is not None:
            place.release()


class Quarantine:
    """One place for suspects in a process.

    A crash loop is detected by claims without a commit. An agent that dies ends the work on all its runs, so
    without the quarantine, innocent runs would fail together with the run that kills their agent.
    """

    def __init__(self) -> None:
        # Held by the suspect that is driven alone.
        self._place = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, suspect: bool, on_cleared: Callable[[], Awaitable[None]]) -> AsyncGenerator[Turn]:
        """Wait for the place if the run is a suspect; other runs do not wait.

        `on_cleared` is called when the suspect has been driven alone for `ALONE_S`.
        """
        if not suspect:
            yield Turn(None)
            return
        await self._place.acquire()
        turn = Turn(self._place)
        clearing = asyncio.create_task(_clear(turn, on_cleared), name="quarantine")
        try:
            yield turn
        finally:
            clearing.cancel()
            await asyncio.wait({clearing})
            turn.end()


async def _clear(turn: Turn, on_cleared: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(ALONE_S)
    try:
        if turn.place is not None:
            await on_cleared()
    except BanksmanError as error:
        logger.warning("a suspect run could not be cleared: %s", error)
    finally:
        turn.end()


@dataclass(frozen=True, slots=True)
class RunWorker:
    ports: Ports
    log: ConversationLog
    approvals: ApprovalSlots
    notifications: OwnerNotifications
    model_step: ModelStep
    archiver: Archiver
    record_decision: Callable[[ApprovalReply], Awaitable[None]]
    """Records a handled decision in the audit trail. Safe to repeat."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    _arrivals: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(
        default_factory=WeakValueDictionary[tuple[str, str], asyncio.Lock]
    )
    """One handler of a conversation records all that waits, and the others find it recorded."""
    _signals: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )
    """By subject: the signals of a conversation are handled in the order of their arrival."""

    async def on_work(self, message: WorkMessage) -> Outcome:
        """Drive a run until it ends or parks. Idempotent: the claim in the log names its message.

        A message whose run ended as a crash loop raises `Poison`.
        """
        work: RunWork = decoded(RUN_WORK, message)
        check_subject(message, subjects.run_work(work.tenant, work.conversation_id))
        before = await self._state_before(work, message)
        show_activity = partial(record_activity, self.ports, work.tenant, work.conversation_id)
        async with self.quarantine.turn(is_suspect(before), show_activity) as turn:
            async with self._arrivals.setdefault((work.tenant, work.conversation_id), asyncio.Lock()):
                owned = await accept(
                    self.ports,
                    work,
                    message.stream_seq,
                    alone=not is_behind(message.headers),
                    on_commit=turn.end,
                )
            claims = before.claims_in_row if owned is None else owned.state.claims_in_row
            if owned is not None:
                owned.before_run = message.in_turn
                if not await self.notifications.drive(owned, self.model_step):
                    return Leave()
        if owned is None or (owned.state.run is None and owned.state.queue):
            # The commit that ended the earlier run may have had no room for the start of the queued run.
            await handlers.wake_queue(self.ports, before if owned is None else owned.state)
        if claims >= CRASH_LOOP_CLAIMS:
            # The run has its terminal event. The message in DEAD helps an operator to find the cause.
            raise Poison(message.subject, f"crash_loop: run {work.run_id} was given up")
        await reach("agent.before_ack")
        return Done()

    async def _state_before(self, work: RunWork, message: WorkMessage) -> Conversation:
        if message.num_delivered > 1:
            return await self.ports.log.read(work.tenant, work.conversation_id)
        return Conversation(work.tenant, work.conversation_id)

    async def on_signal(self, message: WorkMessage) -> Outcome:
        """Handle a signal. Idempotent by the id of its run, message, request, approval or conversation.

        A deletion waits for a runner, possibly for seconds.
        """
        signal: RunSignal = decoded(RUN_SIGNAL, message)
        check_subject(message, subjects.run_signal(signal.tenant, signal.conversation_id))
        async with self._signals.setdefault(message.subject, asyncio.Lock()):
            return await self._handle(signal, message)

    async def _handle(self, signal: RunSignal, message: WorkMessage) -> Outcome:
        match signal:
            case CancelRun() | SteerRun() | ImportEvents():
                await handlers.on_ordered(self.ports, signal, message.stream_seq)
            case ImportConversation():
                await handlers.on_import(self.ports, signal)
            case RenameConversation():
                await handlers.on_rename(self.ports, signal)
            case EscalateApproval():
                ids = signal.tenant, signal.conversation_id, signal.approval_id
                await handlers.on_escalation(self.ports, *ids, by=signal.by)
            case ForgetDecision():
                await handlers.on_forget(self.ports, signal)
            case DeleteConversation():
                tombstone = await handlers.on_delete(self.ports, signal)
                if tombstone is None:
                    return Later(DELETE_RETRY_S)
                await self._remove(signal, before=tombstone)
            case ArchiveConversation():
                await self._archive(signal)
        return Done()

    async def _remove(self, deletion: DeleteConversation, *, before: int) -> None:
        tenant, conversation_id = deletion.tenant, deletion.conversation_id
        await self.ports.runners.forget(tenant, conversation_id)
        await self.approvals.forget_conversation(tenant, conversation_id)
        await self._purge(tenant, conversation_id, before=before)
        await self.log.remove_archive(tenant, conversation_id)

    async def _archive(self, signal: ArchiveConversation) -> None:
        try:
            before = await self.archiver.archive(signal)
            if before is not None:
                await self._purge(signal.tenant, signal.conversation_id, before=before)
        except BanksmanError as error:
            # A gateway sends the signal again at its next search.
            logger.warning("%s: was not archived: %s", signal.conversation_id, error)

    async def _purge(self, tenant: str, conversation_id: str, *, before: int) -> None:
        # Before the purge: a process that starts later counts the usage of tenants from the logs.
        usage = self.model_step.tenants.usage
        await usage.flush()
        freed = await self.log.size(tenant, conversation_id, before=before)
        await usage.release(tenant, freed)
        await self.log.purge(tenant, conversation_id, before=before)

    async def on_decision(self, message: WorkMessage) -> Outcome:
        """Handle a decision; an invalid one is dead-lettered, and its approval request is opened again."""
        try:
            reply = decoded(APPROVAL_REPLY, message)
            check_subject(message, subjects.approval_reply(reply.tenant, reply.approval_id))
            await handlers.on_decision(self.ports, reply)
            # After the run continues, which does not wait for it.
            await self.record_decision(reply)
        except Poison as poison:
            if poison.subject != message.subject:
                # Another message cannot be read, such as a commit of the log. The reply may be valid.
                raise
            # The stream APPROVALS retains acked messages, so this one would block the slot of the reply.
            await self.approvals.discard(message, poison.reason)
        return Done()

    async def on_timer(self, message: WorkMessage) -> Outcome:
        """Escalate or expire an approval request without a decision; later remove the request and its reply.

        Idempotent by approval id: the first reply stays.
        """
        approval = decoded(TIMED_APPROVAL, message)
        timer = fired_timer(message.subject)
        check_subject(message, subjects.timer_fired(timer.kind, approval.tenant, approval.approval_id))
        ids = approval.tenant, approval.conversation_id, approval.approval_id
        if timer.kind == ESCALATION_TIMER:
            await handlers.on_escalation(self.ports, *ids)
            return Done()
        if timer.kind == EXPIRY_TIMER:
            await handlers.on_expiry(self.ports, *ids)
        elif timer.kind != REMOVAL_TIMER:
            raise Poison(message.subject, f"there are no timers of kind {timer.kind!r}")
        elif await handlers.may_remove(self.ports, *ids):
            await self.approvals.forget(approval.tenant, approval.approval_id)
            return Done()
        removal = self.ports.clock.now() + timedelta(seconds=REMOVE_AFTER_S)
        await self.approvals.schedule_removal(approval.tenant, approval.approval_id, message.data, at=removal)
        return Done()


def capped(tenants: TenantSettings, start: StartRun) -> StartRun:
    """Return a start whose settings name its user and are cut to the limits of its tenant."""
    most = tenants.of(start.tenant)
    tools, limits = start.settings.tools, start.settings.limits
    tools = _cut(tools, {"max_iterations": most.max_iterations})
    limits = _cut(
        limits,
        {
            "run_timeout_s": most.run_timeout_s,
            "calls_per_reply": most.calls_per_reply,
            "max_calls_per_run": most.max_calls_per_run,
            "max_tokens_per_run": most.max_tokens_per_run,
            "max_cost_usd": most.max_cost_usd_per_run,
        },
    )
    settings = {"user": start.user, "tools": tools, "limits": limits}
    return start.model_copy(update={"settings": start.settings.model_copy(update=settings)})


def _cut(requested: S, most: Mapping[str, float | None]) -> S:
    """Return settings of which no field exceeds its maximum; None for no maximum."""
    bounds = ((name, getattr(requested, name), bound) for name, bound in most.items() if bound is not None)
    changes = {name: bound for name, value, bound in bounds if value is None or value > bound}
    return requested.model_copy(update=changes) if changes else requested
