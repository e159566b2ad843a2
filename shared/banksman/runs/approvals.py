"""Approval requests and replies: gateways sign replies, agents verify them."""

from __future__ import annotations

import hashlib
import hmac

from pydantic.main import IncEx

from banksman.contracts.events import ApprovalOutcome, ApprovalResolved
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation, Run

SYSTEM = "system"
"""The `by` of a reply that closes a request without a decision."""

DECIDED = frozenset({"approved", "rejected", "mixed"})
"""Outcomes that a person decides; such a reply needs a gateway's signature."""


def sign(reply: ApprovalReply, key: bytes) -> ApprovalReply:
    """Return the reply with the gateway's signature."""
    return reply.model_copy(update={"signature": _mac(reply, key)})


def is_signed(reply: ApprovalReply, key: bytes) -> bool:
    """Return whether a gateway that holds `key` wrote this reply."""
    return hmac.compare_digest(reply.signature, _mac(reply, key))


_SIGNED: IncEx = {
    **dict.fromkeys(("v", "tenant", "conversation_id", "run_id", "approval_id", "outcome", "by"), True),
    "decisions": {"__all__": {"tool_call_id", "decision", "arguments", "reason"}},
    **dict.fromkeys(("remember", "digests", "decided_at", "signature"), True),
}
"""The fields that a signature covers. Fields that were added later are not among them, so that replicas of
two versions, of which one does not know a field, accept each other's signatures. A new field that must be
signed needs a signature of its own."""


def _mac(reply: ApprovalReply, key: bytes) -> str:
    text = reply.model_copy(update={"signature": ""}).model_dump_json(include=_SIGNED)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def problem(reply: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> str | None:
    """Return why a stored reply is invalid; None when it is valid.

    The reply subject is open to more than gateways: a forged reply inside one account is not
    permission-checked.

    Args:
        reply: The stored reply.
        request: The open request; None when it is not open, in which case only the signature is verified.
        key: The gateways' signing key.
    """
    if request is not None and _target(reply) != _target(request):
        return "the reply belongs to another request"
    if reply.outcome not in DECIDED:
        return _system_reply_problem(reply)
    if not is_signed(reply, key):
        return "the reply is not signed by a gateway"
    if request is None:
        return None
    if reply.digests != tuple(item.digest for item in request.items):
        return "the reply decides other calls than the request lists"
    if reply.decided_at > request.expires_at:
        return "the reply came after the request had expired"
    return None


def _target(message: ApprovalReply | ApprovalRequest) -> tuple[str, str, str, str]:
    return message.tenant, message.conversation_id, message.run_id, message.approval_id


def _system_reply_problem(reply: ApprovalReply) -> str | None:
    """Return why an unsigned reply is invalid: it may close a request and nothing else."""
    if reply.by == SYSTEM and not reply.decisions and reply.remember is None:
        return None
    return "the reply decides something and is not signed by a gateway"


def resolution(reply: ApprovalReply) -> ApprovalResolved:
    """Return the event of a stored reply."""
    return ApprovalResolved(
        approval_id=reply.approval_id,
        outcome=reply.outcome,
        by=reply.by,
        decisions=reply.decisions,
        remember=reply.remember,
    )


def open_approval_request(state: Conversation) -> ApprovalRequest | None:
    """Return the open approval request of a run, as its log has it; None when none is open."""
    run = state.run
    if run is None or run.approval is None or not run.waits:
        return None
    requested = run.approval.request
    return ApprovalRequest(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run.run_id,
        approval_id=requested.approval_id,
        expires_at=requested.expires_at,
        items=requested.items,
    )


async def publish_approval_request(ports: Ports, state: Conversation) -> None:
    """Publish the open approval request of a run. Its slot takes one message, so repeats change nothing."""
    request = open_approval_request(state)
    if request is not None:
        await ports.approvals.publish_request(request)


async def close_request(
    ports: Ports, state: Conversation, run: Run, outcome: ApprovalOutcome
) -> ApprovalReply:
    """Close the open approval request of a run, unless a valid reply was stored before.

    The slot arbitrates between this and a decision. An invalid reply is discarded, so that it can neither win
    nor block the slot.

    Returns:
        The reply that the slot holds.
    """
    while True:
        stored = await ports.approvals.store_reply(_system_reply(ports, state, run, outcome))
        reason = problem(stored, open_approval_request(state), ports.signing_key)
        if reason is None:
            return stored
        await ports.approvals.discard_reply(stored, reason)


def _system_reply(ports: Ports, state: Conversation, run: Run, outcome: ApprovalOutcome) -> ApprovalReply:
    if run.approval is None:
        raise ValueError(f"{run.run_id}: no approval request is open")
    return ApprovalReply(
        tenant=state.tenant,
        conversation_id=state.conversation_id,
        run_id=run.run_id,
        approval_id=run.approval.request.approval_id,
        outcome=outcome,
        by=SYSTEM,
        decided_at=ports.clock.now(),
    )
