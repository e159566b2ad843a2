"""Answers to open questions: signed by a gateway, checked by agents, closed by the system."""

from __future__ import annotations

import hashlib
import hmac

from banksman.contracts.events import ApprovalOutcome, ApprovalResolved
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from banksman.runs.owner import Ownership
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation, Run

ANSWERS = frozenset({"approved", "rejected", "mixed"})
"""Outcomes that a person decides; they need a gateway's signature."""


def sign(reply: ApprovalReply, key: bytes) -> ApprovalReply:
    """The reply with the gateway's signature over all its other fields."""
    return reply.model_copy(update={"signature": _mac(reply, key)})


def is_signed(reply: ApprovalReply, key: bytes) -> bool:
    """True when a gateway that holds `key` wrote the reply as it is."""
    return hmac.compare_digest(reply.signature, _mac(reply, key))


def _mac(reply: ApprovalReply, key: bytes) -> str:
    text = reply.model_copy(update={"signature": ""}).model_dump_json()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def problem(reply: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> str | None:
    """Why a stored reply must not be honoured; None when it may be."""
    if reply.outcome not in ANSWERS:
        return None
    if not is_signed(reply, key):
        return "the reply is not signed by a gateway"
    if request is None:
        return "there is no request for the reply"
    if reply.digests != tuple(item.digest for item in request.items):
        return "the reply is about other calls than were asked"
    if reply.decided_at > request.expires_at:
        return "the reply came after the request had expired"
    return None


def resolution(reply: ApprovalReply) -> ApprovalResolved:
    """What a stored reply becomes in the log."""
    return ApprovalResolved(
        approval_id=reply.approval_id,
        outcome=reply.outcome,
        by=reply.by,
        decisions=reply.decisions,
        remember=reply.remember,
    )


def settled_by_system(ports: Ports, state: Conversation, run: Run, outcome: ApprovalOutcome) -> ApprovalReply:
    """The answer `system` gives to the open question of a run: expired, cancelled or superseded."""
    if run.approval is None:
        raise ValueError(f"{run.run_id}: no question is open")
    return ApprovalReply(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run.run_id,
        approval_id=run.approval.request.approval_id,
        outcome=outcome,
        by="system",
        decided_at=ports.clock.now(),
    )


async def withdraw(owned: Ownership) -> None:
    """Close the open question of a run that must end; the slot says who was first."""
    run = owned.run
    reply = settled_by_system(owned.ports, owned.state, run, "cancelled")
    stored = await owned.ports.approvals.settle(reply)
    await owned.commit(lambda state: (resolution(stored),) if state.run and state.run.waits else ())
