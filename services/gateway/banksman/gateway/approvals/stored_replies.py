"""Reads the stored reply to an approval request, which is valid if it can be decoded and verified."""

from __future__ import annotations

from typing import Protocol

from banksman.contracts.errors import NotReady, Poison
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval, LinkUse
from banksman.runs.approval.requests import problem


class ApprovalSlots(Protocol):
    """The two slots of an approval: the request, and the one reply to it."""

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """Return the stored request and reply, read from the stream's leader."""
        ...

    async def store_reply(self, reply: ApprovalReply) -> ApprovalReply:
        """Store a reply unless the slot holds one; return the stored reply."""
        ...

    async def first(self, tenant: str, approval_id: str) -> FirstApproval | None:
        """Return the first of two approvals; None if no user approved yet."""
        ...

    async def use_link(self, tenant: str, approval_id: str, link: str, use: LinkUse) -> LinkUse:
        """Store the use of a link unless one is stored; return the stored one."""
        ...

    async def store_first(self, first: FirstApproval) -> FirstApproval:
        """Store the first of two approvals unless one is stored; return the stored one."""
        ...


async def readable(
    slots: ApprovalSlots, tenant: str, approval_id: str
) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
    """Return the stored request and reply.

    Raises:
        NotReady: One of them cannot be decoded, and is about to be removed.
    """
    try:
        return await slots.read(tenant, approval_id)
    except Poison as poison:
        raise open_again(approval_id) from poison


def valid_reply(stored: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> ApprovalReply:
    """Return a stored reply after verifying it.

    Raises:
        NotReady: The reply is invalid, and is about to be removed.
    """
    if problem(stored, request, key) is not None:
        raise open_again(stored.approval_id)
    return stored


def open_again(approval_id: str) -> NotReady:
    """Return the error for an invalid or unreadable stored reply.

    An agent dead-letters such a reply, which opens the approval request again.
    """
    message = f"the stored decision on approval {approval_id!r} is invalid and is about to be removed"
    return NotReady(message, retry_after_s=0.5)
