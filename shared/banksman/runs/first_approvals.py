"""The first of two approvals: gateways sign it, and the reply of the second user contains it.

A first approval decides nothing by itself. Its signature and that of a reply cover different prefixes, so
neither is valid as the other.
"""

from __future__ import annotations

import hashlib
import hmac

from pydantic.main import IncEx

from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval

_SIGNED: IncEx = {
    **dict.fromkeys(("v", "tenant", "conversation_id", "run_id", "approval_id", "by"), True),
    "decisions": {"__all__": {"tool_call_id", "decision", "arguments", "reason"}},
    **dict.fromkeys(("remember", "digests", "decided_at"), True),
}


def sign_first(first: FirstApproval, key: bytes) -> FirstApproval:
    """Return a first approval with the gateway's signature."""
    return first.model_copy(update={"signature": _mac(first, key)})


def is_signed_first(first: FirstApproval, key: bytes) -> bool:
    """Return whether a gateway with `key` signed this first approval."""
    return hmac.compare_digest(first.signature, _mac(first, key))


def unconfirmed(reply: ApprovalReply, request: ApprovalRequest, key: bytes) -> str | None:
    """Return why a reply lacks a valid first approval; None if it has one or needs none.

    Both users must have made the same decision about the same calls with the same arguments.
    """
    if request.approvers == 1 or reply.outcome not in ("approved", "mixed"):
        return None
    first = reply.first
    if first is None:
        return "only one of two users approved"
    if not is_signed_first(first, key):
        return "the first approval is not signed by a gateway"
    if first.by == reply.by:
        return "one user approved twice"
    if _approved(first) != _approved(reply):
        return "the two users did not make the same decision"
    return None


def _approved(given: ApprovalReply | FirstApproval) -> tuple[object, ...]:
    """Return the fields that must be equal in both approvals."""
    target = (given.tenant, given.conversation_id, given.run_id, given.approval_id)
    return (*target, given.decisions, given.remember, given.digests)


def _mac(first: FirstApproval, key: bytes) -> str:
    text = f"first approval\n{first.model_dump_json(include=_SIGNED)}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
