"""Approval requests as an approver is sent them: after the first of two approvals, with what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from banksman.bus.connection import Bus
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalRequested,
    ApprovedFirst,
    ItemDecision,
    Remember,
    sent_digest,
)
from banksman.contracts.errors import Poison
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import FirstApproval
from banksman.gateway.conversations.view import ConversationView
from banksman.runs.approval.policy import approval_item, coverage


def sent_items(items: Iterable[ApprovalItem], first: FirstApproval | None) -> tuple[ApprovalItem, ...]:
    """Return the calls as they run if the approver agrees; their digests cover the first approval too."""
    decided = {one.tool_call_id: one for one in first.decisions} if first else {}
    remember = first and first.remember
    return tuple(_sent(item, decided.get(item.tool_call_id), remember) for item in items)


def approved_first(first: FirstApproval) -> ApprovedFirst:
    return ApprovedFirst(**{name: getattr(first, name) for name in ApprovedFirst.model_fields})


async def as_sent(bus: Bus, tenant: str, view: ConversationView) -> ConversationView:
    """Return a view with its open approval requests as they are sent now."""
    if not any(one.requested.terms for one in view.approvals.values()):
        return view
    slots = ApprovalSlots(bus)
    sent = {
        key: replace(one, requested=await _requested(slots, tenant, one.requested))
        for key, one in tuple(view.approvals.items())
    }
    return replace(view, approvals=sent)


async def _requested(slots: ApprovalSlots, tenant: str, requested: ApprovalRequested) -> ApprovalRequested:
    if requested.terms is None or requested.terms.approvers == 1:
        return requested
    try:
        first = await slots.first(tenant, requested.approval_id)
    except Poison:
        # A decision reports it.
        first = None
    if first is None:
        return requested
    changes = {"items": sent_items(requested.items, first), "first": approved_first(first)}
    return requested.model_copy(update=changes)


def _sent(item: ApprovalItem, decided: ItemDecision | None, remember: Remember | None) -> ApprovalItem:
    if item.covers is None:
        item = item.model_copy(update={"covers": coverage(item.name, item.arguments)})
    if decided is None:
        return item
    sent = item if decided.arguments is None else _edited(item, decided.arguments)
    return sent.model_copy(update={"digest": sent_digest(sent.digest, decided.decision, remember)})


def _edited(item: ApprovalItem, arguments: JsonObject) -> ApprovalItem:
    call = ToolCall(id=item.tool_call_id, name=item.name, arguments=arguments, network=item.network)
    same_file = arguments.get("path") == item.arguments.get("path")
    edited = approval_item(call, old_content=item.preview.old if same_file else None)
    return edited.model_copy(update={"requested": item.arguments, "editable": item.editable})
