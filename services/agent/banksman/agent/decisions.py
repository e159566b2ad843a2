"""Records in the audit trail how each approval request ended: the decision of users, or none."""

from __future__ import annotations

from contextlib import suppress

from banksman.bus.connection import Bus
from banksman.bus.publish import record_action
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.administration import AuditEntry, DecidedCall, DecisionDetails
from banksman.contracts.approvals import ApprovalItem, CoveredBy, ItemDecision
from banksman.contracts.errors import Poison
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval
from banksman.runs.approval.policy import coverage
from banksman.runs.approval.requests import is_signed

MAX_CALLS = 20


async def record_decision(bus: Bus, slots: ApprovalSlots, key: bytes, reply: ApprovalReply) -> None:
    """Record the reply that took effect; nothing for another one, or for a requested value.

    Safe to repeat: the message id names the request. Raises what `durable` raises.
    """
    request, stored = await slots.read(reply.tenant, reply.approval_id)
    if request is None or request.input is not None or stored != reply:
        return
    entry = AuditEntry(
        ts=reply.decided_at,
        tenant=reply.tenant,
        actor=reply.by,
        interface=reply.interface,
        action=f"approval.{reply.outcome}",
        target=reply.approval_id,
        details=_details(request, reply, await _first(slots, key, request, reply)).model_dump(mode="json"),
    )
    await record_action(bus, entry, msg_id=f"{reply.tenant}:{entry.action}:{reply.approval_id}")


async def _first(
    slots: ApprovalSlots, key: bytes, request: ApprovalRequest, reply: ApprovalReply
) -> FirstApproval | None:
    """Return the first of two approvals; a second user may not have followed it before the reply."""
    if reply.first is not None or request.approvers == 1:
        return reply.first
    with suppress(Poison):
        first = await slots.first(reply.tenant, reply.approval_id)
        return first if first and is_signed(first, key) else None
    return None


def _details(request: ApprovalRequest, reply: ApprovalReply, first: FirstApproval | None) -> DecisionDetails:
    given = {one.tool_call_id: one for one in reply.decisions}
    items = request.items[:MAX_CALLS]
    decided = [(item, given[item.tool_call_id]) for item in items if item.tool_call_id in given]
    return DecisionDetails(
        conversation_id=reply.conversation_id,
        run_id=reply.run_id,
        commit=request.commit,
        tools=tuple(item.name for item in items),
        decisions=tuple(_decision(request, one) for _, one in decided),
        more=len(request.items) - len(items),
        remember=reply.remember,
        covers=tuple(_covers(*one) for one in decided) if reply.remember else (),
        first_by=first and first.by,
    )


def _covers(item: ApprovalItem, decided: ItemDecision) -> CoveredBy:
    arguments = item.arguments if decided.arguments is None else decided.arguments
    return coverage(item.name, arguments, decided.covers).by


def _decision(request: ApprovalRequest, decided: ItemDecision) -> DecidedCall:
    if decided.decision == "approve":
        return "approved" if decided.arguments is None else "edited"
    return "stopped" if (decided.on_reject or request.on_reject) == "abort" else "rejected"
