"""Sets approval requests aside. This decides nothing, but escalates a request if its terms say so."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import check_token
from banksman.contracts.work import EscalateApproval, SetAside
from banksman.gateway.approvals.stored_replies import readable
from banksman.gateway.operation.caller import Caller
from banksman.gateway.quotas.backlog import Backlog
from banksman.runs.ports import Clock


@dataclass(frozen=True, slots=True)
class Asides:
    """Records which users set which requests aside."""

    slots: ApprovalSlots
    queue: RunQueue
    backlog: Backlog
    clock: Clock

    async def set_aside(self, caller: Caller, approval_id: str) -> None:
        """Remove a request from the caller's inbox. The request stays open, and a repeat changes nothing.

        Raises:
            Forbidden: The caller may not approve.
            NotFound: The tenant has no such approval request.
            Conflict: The request is already decided.
        """
        caller.check("context")
        caller.need("approve")
        check_token(approval_id, "approval_id")
        request, reply = await readable(self.slots, caller.tenant, approval_id)
        if request is None or request.input is not None:
            raise NotFound("approval", approval_id)
        if reply is not None:
            raise Conflict(f"approval {approval_id!r} is decided")
        aside = SetAside(by=caller.user, at=self.clock.now())
        await self.slots.set_aside(caller.tenant, approval_id, aside)
        escalation = request.terms and request.terms.escalation
        if escalation and escalation.when_set_aside:
            await self.backlog.check_signal(caller.tenant)
            signal = EscalateApproval(
                tenant=caller.tenant,
                conversation_id=request.conversation_id,
                approval_id=approval_id,
                by=caller.user,
            )
            await self.queue.signal(signal, f"escalate-{approval_id}")
