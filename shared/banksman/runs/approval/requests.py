"""Requests that a user replies to: gateways sign the replies, agents verify them.

An approval request lists calls, and its reply decides them. An input request describes a value, and its reply
holds the value. Both have the same slots, timers and signatures.

If two users must approve, the first approval decides nothing by itself, and the reply of the second user
contains it. The signatures of a first approval and of a reply cover different prefixes, so neither is valid
as the other.
"""

from __future__ import annotations

import hmac
import json
from functools import partial
from typing import Final, TypeVar

from pydantic.main import IncEx

from banksman.contracts.approvals import (
    ApprovalOutcome,
    ApprovalResolved,
    InputOutcome,
    InputRequested,
    InputResolved,
)
from banksman.contracts.events import EventBody, ToolCallCompleted
from banksman.contracts.ids import digest
from banksman.contracts.tools import ToolResult, failed
from banksman.contracts.wire import JsonValue, json_bytes
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval
from banksman.runs.outcome import RESULT_BYTES
from banksman.runs.ports import Ports
from banksman.runs.state import Conversation

Signed = TypeVar("Signed", ApprovalReply, FirstApproval)

SYSTEM = "system"
"""The `by` of a reply that closes a request without a decision."""

DECIDED = frozenset({"approved", "rejected", "mixed"})
"""Outcomes that a person decides; such a reply needs a gateway's signature."""


def sign(message: Signed, key: bytes) -> Signed:
    return message.model_copy(update={"signature": _mac(message, key)})


def is_signed(message: ApprovalReply | FirstApproval, key: bytes) -> bool:
    return hmac.compare_digest(message.signature, _mac(message, key))


INPUT_OUTCOMES: Final[dict[ApprovalOutcome, InputOutcome]] = {
    "approved": "provided",
    "rejected": "declined",
    "expired": "expired",
}
"""What the outcomes of a reply mean for a requested value; the others cancel the request."""

_SIGNED: IncEx = {
    **dict.fromkeys(("v", "tenant", "conversation_id", "run_id", "approval_id", "outcome", "by"), True),
    "decisions": {"__all__": {"tool_call_id", "decision", "arguments", "reason", "covers", "on_reject"}},
    **dict.fromkeys(("remember", "digests", "decided_at", "signature"), True),
}
"""The fields that a signature covers. Fields that were added later are omitted without a value, so that
replicas of two versions accept each other's signatures. A replica that does not know a field refuses a reply
that uses it, and the request stays open."""


def _mac(message: ApprovalReply | FirstApproval, key: bytes) -> str:
    if isinstance(message, FirstApproval):
        text = f"first approval\n{message.model_dump_json(include=_SIGNED, exclude={'signature'})}"
    else:
        text = message.model_copy(update={"signature": ""}).model_dump_json(include=_SIGNED)
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def problem(reply: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> str | None:
    """Return why a stored reply is invalid; None when it is valid. Without a request, only signatures count.

    Users other than gateways can write to the subject of a reply, so permissions do not prove its origin. Any
    user of the account can name it as the reply subject of a request, which the server does not check.
    """
    if request is not None and reply.target != request.target:
        return "the reply belongs to another request"
    if reply.outcome not in DECIDED:
        return _system_reply_problem(reply)
    if not is_signed(reply, key):
        return "the reply is not signed by a gateway"
    if request is None:
        return None
    if request.input is not None and reply.digests != input_digests(request.input, reply.value):
        return "the value of the reply is not the value that its gateway signed"
    if request.input is None and reply.digests != tuple(item.digest for item in request.items):
        return "the reply decides other calls than the request lists"
    if reply.decided_at > request.expires_at:
        return "the reply came after the request had expired"
    return unconfirmed(reply, request, key)


def input_digests(request: InputRequested, value: JsonValue) -> tuple[str, str]:
    return _digest([request.request_id, request.message, request.schema_]), _digest(value)


def _digest(value: object) -> str:
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def _system_reply_problem(reply: ApprovalReply) -> str | None:
    """Return why an unsigned reply is invalid: it may close a request and nothing else."""
    if reply.by == SYSTEM and not reply.decisions and reply.remember is None and reply.value is None:
        return None
    return "the reply decides something and is not signed by a gateway"


def resolution(reply: ApprovalReply, request: ApprovalRequest) -> tuple[EventBody, ...]:
    """Return the events of a stored reply. For a value, they include the result of the waiting step."""
    if request.input is not None:
        return _input_resolution(reply, request.input)
    resolved = ApprovalResolved(
        approval_id=reply.approval_id,
        outcome=reply.outcome,
        by=reply.by,
        decisions=reply.decisions,
        remember=reply.remember,
        first_by=None if reply.first is None else reply.first.by,
    )
    return (resolved,)


def _input_resolution(reply: ApprovalReply, request: InputRequested) -> tuple[EventBody, ...]:
    step, value = request.tool_call_id, reply.value
    if request.server is not None:
        outcome = INPUT_OUTCOMES.get(reply.outcome, "cancelled")
        return (InputResolved(request_id=request.request_id, value=value, by=reply.by, outcome=outcome),)
    match reply.outcome:
        case "approved" if (size := json_bytes(value)) > RESULT_BYTES:
            # Checked here too, although gateways refuse such a value: a commit that holds it twice, in the
            # reply and in the result, would be too large, and the run could neither continue nor end.
            text = f"The provided value has {size} bytes of JSON; at most {RESULT_BYTES} are stored."
            outcome, value, result = "provided", None, failed(step, "output_limit", text)
        case "approved":
            outcome = "provided"
            result = ToolResult(tool_call_id=step, content={"success": True, "value": value})
        case "rejected":
            outcome, result = "declined", failed(step, "rejected", "The user declined to provide the value.")
        case "expired":
            outcome, result = "expired", failed(step, "timeout", "Nobody provided the value in time.")
        case _:
            outcome, result = "cancelled", failed(step, "cancelled", "The request for a value was withdrawn.")
    resolved = InputResolved(request_id=request.request_id, value=value, by=reply.by, outcome=outcome)
    return resolved, ToolCallCompleted(result=result)


def open_requests(state: Conversation) -> tuple[ApprovalRequest, ...]:
    run = state.run
    if run is None:
        return ()
    request = partial(
        ApprovalRequest, tenant=state.tenant, conversation_id=state.conversation_id, run_id=run.run_id
    )
    inputs = (
        request(approval_id=one.request_id, expires_at=one.expires_at, items=(), input=one)
        for one in run.open_inputs
    )
    if run.approval is None or not run.undecided:
        return tuple(inputs)
    asked = run.approval.request
    calls = request(
        approval_id=asked.approval_id,
        expires_at=asked.expires_at,
        items=asked.items,
        terms=asked.terms,
        escalates_at=asked.escalates_at,
        on_reject=asked.on_reject,
    )
    return calls, *inputs


def open_request(state: Conversation, approval_id: str) -> ApprovalRequest | None:
    return next((one for one in open_requests(state) if one.approval_id == approval_id), None)


def open_approval_request(state: Conversation) -> ApprovalRequest | None:
    return next((one for one in open_requests(state) if one.input is None), None)


async def publish_requests(ports: Ports, state: Conversation) -> None:
    """Publish the open requests of a run. A slot takes one message, so repeats have no effect."""
    for request in open_requests(state):
        await ports.approvals.publish_request(request.model_copy(update={"commit": state.stream_seq}))


async def close_request(ports: Ports, request: ApprovalRequest, outcome: ApprovalOutcome) -> ApprovalReply:
    """Close an open request, unless a valid reply was stored before; return the reply that the slot holds.

    An invalid reply is discarded, so that it can neither win nor block the slot.
    """
    while True:
        stored = await ports.approvals.store_reply(_system_reply(ports, request, outcome))
        reason = problem(stored, request, ports.signing_key)
        if reason is None:
            return stored
        await ports.approvals.discard_reply(stored, reason)


def _system_reply(ports: Ports, request: ApprovalRequest, outcome: ApprovalOutcome) -> ApprovalReply:
    return ApprovalReply(
        tenant=request.tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=request.approval_id,
        outcome=outcome,
        by=SYSTEM,
        decided_at=ports.clock.now(),
    )


def unconfirmed(reply: ApprovalReply, request: ApprovalRequest, key: bytes) -> str | None:
    """Return why a reply lacks a valid first approval of the same calls; None if it has one or needs none."""
    if request.approvers == 1 or reply.outcome not in ("approved", "mixed"):
        return None
    first = reply.first
    if first is None:
        return "only one of two users approved"
    if not is_signed(first, key):
        return "the first approval is not signed by a gateway"
    if first.by == reply.by:
        return "one user approved twice"
    if _approved(first) != _approved(reply):
        return "the two users did not make the same decision"
    return None


def _approved(given: ApprovalReply | FirstApproval) -> tuple[object, ...]:
    return given.target, given.decisions, given.remember, given.digests
