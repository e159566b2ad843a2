"""Answers to open questions: signed by a gateway, checked by agents, closed by the system."""

from __future__ import annotations

import hashlib
import hmac

from pydantic.main import IncEx

from banksman.contracts.events import ApprovalOutcome, ApprovalResolved
from banksman.contracts.work import ApprovalReply, ApprovalRequest
from banksman.runs.owner import Ownership, open_question
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation, Run

SYSTEM = "system"
"""Who closes a question that nobody answered."""

ANSWERS = frozenset({"approved", "rejected", "mixed"})
"""Outcomes that a person decides; they need a gateway's signature."""


def sign(reply: ApprovalReply, key: bytes) -> ApprovalReply:
    """The reply with the gateway's signature over what it decides."""
    return reply.model_copy(update={"signature": _mac(reply, key)})


def is_signed(reply: ApprovalReply, key: bytes) -> bool:
    """True when a gateway that holds `key` wrote the reply as it is."""
    return hmac.compare_digest(reply.signature, _mac(reply, key))


_SIGNED: IncEx = {
    **dict.fromkeys(("v", "tenant", "conversation_id", "run_id", "approval_id", "outcome", "by"), True),
    "decisions": {"__all__": {"tool_call_id", "decision", "arguments", "reason"}},
    **dict.fromkeys(("remember", "digests", "decided_at", "signature"), True),
}
"""What a signature is over. A field that comes later is no part of it: replicas of two versions, of which one
does not know the field, honour each other's signatures. One that must be signed needs its own."""


def _mac(reply: ApprovalReply, key: bytes) -> str:
    text = reply.model_copy(update={"signature": ""}).model_dump_json(include=_SIGNED)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def problem(reply: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> str | None:
    """Why a stored reply must not be honoured; None when it may be.

    Args:
        reply: what its slot holds.
        request: the question as it was asked; None when it is not open, then the signature alone is judged.
        key: what gateways sign with.
    """
    if request is not None and _about(reply) != _about(request):
        return "the reply belongs to another request"
    if reply.outcome not in ANSWERS:
        return _overreach(reply)
    if not is_signed(reply, key):
        return "the reply is not signed by a gateway"
    if request is None:
        return None
    if reply.digests != tuple(item.digest for item in request.items):
        return "the reply is about other calls than were asked"
    if reply.decided_at > request.expires_at:
        return "the reply came after the request had expired"
    return None


def _about(question: ApprovalReply | ApprovalRequest) -> tuple[str, str, str, str]:
    return question.tenant, question.conversation_id, question.run_id, question.approval_id


def _overreach(reply: ApprovalReply) -> str | None:
    """What an unsigned reply says beyond that its question is closed."""
    if reply.by == SYSTEM and not reply.decisions and reply.remember is None:
        return None
    return "the reply decides something and is not signed by a gateway"


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
        by=SYSTEM,
        decided_at=ports.clock.now(),
    )


async def close(ports: Ports, state: Conversation, run: Run, outcome: ApprovalOutcome) -> ApprovalReply:
    """Close the open question of a run, unless somebody answered first.

    An answer that must not be honoured is put away, so that it can neither win nor block the slot.

    Returns:
        The answer that counts.
    """
    while True:
        stored = await ports.approvals.settle(settled_by_system(ports, state, run, outcome))
        reason = problem(stored, open_question(state), ports.signing_key)
        if reason is None:
            return stored
        await ports.approvals.discard(stored, reason)


async def withdraw(owned: Ownership) -> None:
    """Close the open question of a run that must end; the slot says who was first.

    Raises:
        Fenced: a higher claim owns the run.
    """
    # The slot does not know who owns the run, and to one that was frozen its time may seem to be over.
    await owned.refresh()
    if not owned.holds or not owned.run.waits:
        return
    stored = await close(owned.ports, owned.state, owned.run, "cancelled")
    await owned.commit(lambda state: (resolution(stored),) if state.run and state.run.waits else ())
