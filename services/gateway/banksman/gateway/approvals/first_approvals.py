"""The first of two approvals: stores it, and confirms it with the approval of another user."""

from __future__ import annotations

from typing import Protocol

from banksman.contracts.errors import Conflict, Poison
from banksman.contracts.work import ApprovalReply, FirstApproval
from banksman.runs.approval.requests import is_signed_first, sign_first


class FirstSlot(Protocol):
    """Stores the first of two approvals."""

    async def first(self, tenant: str, approval_id: str) -> FirstApproval | None:
        """Return the first approval; None if no user approved yet."""
        ...

    async def store_first(self, first: FirstApproval) -> FirstApproval:
        """Store a first approval unless one is stored; return the stored one."""
        ...


async def first_approval(slot: FirstSlot, reply: ApprovalReply, key: bytes) -> FirstApproval:
    """Return the stored first approval of a request; without one, store this reply as the first approval.

    Raises:
        Conflict: The stored first approval cannot be read, or has no valid signature.
    """
    try:
        first = await slot.first(reply.tenant, reply.approval_id)
        if first is None:
            fields = set(FirstApproval.model_fields) - {"signature"}
            mine = FirstApproval(**{name: getattr(reply, name) for name in fields})
            # Two users may approve at once: the slot decides which of them is the first.
            first = await slot.store_first(sign_first(mine, key))
    except Poison as poison:
        raise _invalid(reply) from poison
    if not is_signed_first(first, key):
        raise _invalid(reply)
    return first


def _invalid(reply: ApprovalReply) -> Conflict:
    return Conflict(f"the stored first approval of {reply.approval_id!r} is invalid: reject the request")


def confirming(reply: ApprovalReply, first: FirstApproval) -> ApprovalReply:
    """Return the reply of a second user, with the first approval in it.

    Raises:
        Conflict: The same user approved first, or the approvals differ.
    """
    if first.by == reply.by:
        raise Conflict(f"{first.by} approved {reply.approval_id!r} before: another user must approve it too")
    if (first.decisions, first.remember) != (reply.decisions, reply.remember):
        text = f"{first.by} approved {reply.approval_id!r} otherwise: approve exactly the same, or reject all"
        raise Conflict(text)
    return reply.model_copy(update={"first": first})
