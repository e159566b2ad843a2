"""Reads and verifies the stored replies to approval requests: the reply, and the first of two approvals."""

from __future__ import annotations

from typing import Protocol

from banksman.contracts.errors import Conflict, NotReady, Poison
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval, LinkUse
from banksman.runs.approval.requests import is_signed, problem, sign


class ReplySlots(Protocol):
    """The slots of an approval request. A slot that holds a value keeps it: a store returns that value."""

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """Return the stored request and reply, read from the stream's leader."""
        ...

    async def store_reply(self, reply: ApprovalReply) -> ApprovalReply: ...

    async def first(self, tenant: str, approval_id: str) -> FirstApproval | None: ...

    async def use_link(self, tenant: str, approval_id: str, link: str, use: LinkUse) -> LinkUse: ...

    async def store_first(self, first: FirstApproval) -> FirstApproval: ...


async def readable(
    slots: ReplySlots, tenant: str, approval_id: str
) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
    """Return the stored request and reply; raise `NotReady` if one of them cannot be decoded."""
    try:
        return await slots.read(tenant, approval_id)
    except Poison as poison:
        raise open_again(approval_id) from poison


def valid_reply(stored: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> ApprovalReply:
    """Return a stored reply; raise `NotReady` if it is invalid."""
    if problem(stored, request, key) is not None:
        raise open_again(stored.approval_id)
    return stored


async def stored_reply(
    slots: ReplySlots, request: ApprovalRequest, reply: ApprovalReply, key: bytes
) -> ApprovalReply:
    """Sign and store a reply, and return the stored one: another user may have replied meanwhile."""
    try:
        winner = await slots.store_reply(sign(reply, key))
    except Poison as poison:
        raise open_again(reply.approval_id) from poison
    return valid_reply(winner, request, key)


def open_again(approval_id: str) -> NotReady:
    """Return the error for an invalid stored reply, which an agent removes to open the request again."""
    message = f"the stored decision on approval {approval_id!r} is invalid and is about to be removed"
    return NotReady(message, retry_after_s=0.5)


async def read_first(slots: ReplySlots, request: ApprovalRequest, key: bytes) -> FirstApproval | None:
    """Return the first of two approvals of a request, if any; raise `Conflict` if it is invalid."""
    if request.approvers == 1:
        return None
    try:
        first = await slots.first(request.tenant, request.approval_id)
    except Poison as poison:
        raise _invalid(request.approval_id) from poison
    return first and _signed(first, key)


async def store_first(slots: ReplySlots, reply: ApprovalReply, key: bytes) -> FirstApproval:
    """Store a reply as the first of two approvals; return the stored one, which may be another user's."""
    fields = set(FirstApproval.model_fields) - {"signature"}
    mine = FirstApproval(**{name: getattr(reply, name) for name in fields})
    try:
        # Two users may approve at once: the slot decides which of them is the first.
        return _signed(await slots.store_first(sign(mine, key)), key)
    except Poison as poison:
        raise _invalid(reply.approval_id) from poison


def _signed(first: FirstApproval, key: bytes) -> FirstApproval:
    if not is_signed(first, key):
        raise _invalid(first.approval_id)
    return first


def _invalid(approval_id: str) -> Conflict:
    return Conflict(f"the stored first approval of {approval_id!r} is invalid: reject the request")


def confirming(reply: ApprovalReply, first: FirstApproval) -> ApprovalReply:
    """Return the reply of a second user; `Conflict` for the same user or another decision."""
    if first.by == reply.by:
        raise Conflict(f"{first.by} approved {reply.approval_id!r} before: another user must approve it too")
    if (first.decisions, first.remember) != (reply.decisions, reply.remember):
        text = f"{first.by} approved {reply.approval_id!r} otherwise: approve exactly the same, or reject all"
        raise Conflict(text)
    return reply.model_copy(update={"first": first})
