"""What an agent does about each message it is given. Every handler is safe to run twice."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import BaseModel, TypeAdapter

from banksman.agent.loop import drive
from banksman.agent.quarantine import Quarantine, is_suspect
from banksman.agent.thinking import Thinker
from banksman.bus.decoding import check_subject, decoded
from banksman.bus.log import EventLog
from banksman.bus.names import SNAPSHOTS
from banksman.bus.objects import Objects
from banksman.bus.outcomes import Done, Later, Leave, Outcome, WorkMessage
from banksman.bus.slots import ApprovalSlots
from banksman.bus.timers import fired_timer
from banksman.contracts import subjects
from banksman.contracts.errors import Fenced, Poison, Refused
from banksman.contracts.work import (
    ApprovalReply,
    CancelRun,
    DeleteConversation,
    RenameConversation,
    RunSignal,
    RunWork,
    StartRun,
    SteerRun,
)
from banksman.runs import handlers
from banksman.runs.owner import Ownership, accept, show_life
from banksman.runs.ports import Ports
from banksman.runs.snapshots import object_name
from banksman.runs.state import CRASH_LOOP_CLAIMS, Conversation
from banksman.runs.stores import (
    ANSWERED_TIMER,
    APPROVAL_TIMER,
    KEPT_ANSWERED_S,
    StoredApprovals,
    Watch,
)
from banksman.runtime.failpoints import reach

logger = logging.getLogger(__name__)

RUN_WORK: TypeAdapter[RunWork] = TypeAdapter(RunWork)
RUN_SIGNAL: TypeAdapter[RunSignal] = TypeAdapter(RunSignal)
REPLY: TypeAdapter[ApprovalReply] = TypeAdapter(ApprovalReply)
DELETE_AGAIN_S = 0.5
"""Seconds until a deletion looks again whether the open run has ended."""


class _Expiry(BaseModel):
    """The payload of an approval's timer."""

    tenant: str
    conversation_id: str
    approval_id: str


EXPIRY: TypeAdapter[_Expiry] = TypeAdapter(_Expiry)


@dataclass(frozen=True, slots=True)
class Worker:
    """The handlers of one agent process."""

    ports: Ports
    log: EventLog
    watch: Watch
    thinker: Thinker
    quarantine: Quarantine = field(default_factory=Quarantine)

    async def on_work(self, message: WorkMessage) -> Outcome:
        """Drive a run as far as it goes. Idempotent by the log: a claim names the message it works under.

        Raises:
            Poison: the message cannot be read, came on another's subject, or its run was given up.
            Fenced: another agent took the run over.
        """
        work: RunWork = decoded(RUN_WORK, message)
        check_subject(message, subjects.run_work(work.tenant, work.conversation_id))
        before = await self._before(work, message)

        async def cleared() -> None:
            await show_life(self.ports, work.tenant, work.conversation_id)

        async with self.quarantine.place(is_suspect(before), cleared) as free:
            allowed = self.thinker.tenants.capped(work) if isinstance(work, StartRun) else work
            owned = await accept(self.ports, allowed, message.stream_seq, on_commit=free)
            claims = before.claims_in_row if owned is None else owned.state.claims_in_row
            if owned is not None and not await self._driven(owned):
                return Leave()
        if owned is None or (owned.state.run is None and owned.state.queue):
            # Whoever ended the run before could not take the next one along in the same commit.
            await handlers.wake_queue(self.ports, before if owned is None else owned.state)
        if claims >= CRASH_LOOP_CLAIMS:
            # It has its terminal event; the copy is for those who look into why.
            raise Poison(message.subject, f"crash_loop: run {work.run_id} was given up")
        await reach("agent.before_ack")
        return Done()

    async def _driven(self, owned: Ownership) -> bool:
        """Drive a run; False when that failed, and the run is still open.

        Then its message must come again, however often: a run ends in its log, by its crash loop or its time
        limit, and never by its message among the dead letters.
        """
        try:
            async with self.watch.driving(owned.state):
                await drive(owned, self.thinker.think)
        except (Fenced, Refused):
            raise
        except Exception:
            logger.exception("%s: driving its run failed", owned.state.conversation_id)
            return False
        return True

    async def _before(self, work: RunWork, message: WorkMessage) -> Conversation:
        """The log before the message is acted on, as far as it tells of earlier deliveries."""
        if message.num_delivered > 1:
            return await self.ports.log.read(work.tenant, work.conversation_id)
        return Conversation(work.tenant, work.conversation_id)

    async def on_signal(self, message: WorkMessage) -> Outcome:
        """Cancel, steer, rename, delete. Idempotent by run, message or conversation id.

        Raises:
            Poison: the message cannot be read, or came on another's subject.
        """
        signal: RunSignal = decoded(RUN_SIGNAL, message)
        check_subject(message, subjects.run_signal(signal.tenant, signal.conversation_id))
        match signal:
            case CancelRun():
                await handlers.on_cancel(self.ports, signal)
            case SteerRun():
                start = self.thinker.tenants.capped(signal.start)
                await handlers.on_steer(self.ports, signal.model_copy(update={"start": start}))
            case RenameConversation():
                await handlers.on_rename(self.ports, signal)
            case DeleteConversation():
                tombstone = await handlers.on_delete(self.ports, signal)
                if tombstone is None:
                    return Later(DELETE_AGAIN_S)
                await self.thinker.tenants.usage.settle()
                await self.ports.runners.forget(signal.tenant, signal.conversation_id)
                await self._forget_log(signal, tombstone)
        return Done()

    async def _forget_log(self, deleted: DeleteConversation, tombstone: int) -> None:
        """Remove what was said: the log up to its tombstone, and the snapshot that is kept beside it."""
        tenant, conversation_id = deleted.tenant, deleted.conversation_id
        await self.log.purge(tenant, conversation_id, before=tombstone)
        snapshot = object_name(Conversation(tenant, conversation_id))
        await Objects(self.log.bus, SNAPSHOTS).delete(snapshot)

    async def on_decision(self, message: WorkMessage) -> Outcome:
        """Bring a stored answer into the log. Idempotent by approval id.

        An answer that must not be honoured is kept among the dead letters, and the question is open again.
        """
        try:
            reply = decoded(REPLY, message)
            check_subject(message, subjects.approval_reply(reply.tenant, reply.approval_id))
        except Poison as poison:
            # Its stream keeps what is acknowledged, and as long as it is there nobody else can answer.
            await ApprovalSlots(self.log.bus).put_away(message, poison.reason)
            return Done()
        await handlers.on_decision(self.ports, reply)
        return Done()

    async def on_timer(self, message: WorkMessage) -> Outcome:
        """Expire an approval that nobody answered; later remove it with its answer, whoever gave it.

        Idempotent by approval id: the first answer stays.

        Raises:
            Poison: the message cannot be read, or came on another's subject.
        """
        timer = fired_timer(message.subject)
        about = decoded(EXPIRY, message)
        check_subject(message, subjects.timer_fired(timer.kind, about.tenant, about.approval_id))
        about_it = (self.ports, about.tenant, about.conversation_id, about.approval_id)
        match timer.kind:
            case kind if kind == APPROVAL_TIMER:
                await handlers.on_expiry(*about_it)
            case kind if kind == ANSWERED_TIMER:
                if await handlers.may_forget(*about_it):
                    await self.approvals.forget(about.tenant, about.approval_id)
                    return Done()
            case kind:
                raise Poison(message.subject, f"there are no timers of kind {kind!r}")
        again = self.ports.clock.now() + timedelta(seconds=KEPT_ANSWERED_S)
        await self.approvals.look_again(about.tenant, about.approval_id, message.data, at=again)
        return Done()

    @property
    def approvals(self) -> StoredApprovals:
        """The slots of approvals and their timers."""
        return StoredApprovals(self.log.bus, ApprovalSlots(self.log.bus))
