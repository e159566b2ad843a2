"""Open approval requests and requests for a value, and the replies to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Response
from fastapi.responses import JSONResponse

from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.approvals import InputOutcome, InputRequested
from banksman.contracts.errors import BadInput, Conflict, ErrorCode, NotFound
from banksman.contracts.frames import Ack, ApprovalDecision, InputReply
from banksman.contracts.ids import conversation_of_approval, new_id
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, json_bytes
from banksman.contracts.work import ApprovalReply
from banksman.gateway.approvals import bodies
from banksman.gateway.approvals.decisions import AWAITING_SECOND, Decisions
from banksman.gateway.approvals.decisions import operations as decision_operations
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.approvals.pending import operations as pending_operations
from banksman.gateway.approvals.remembered import RememberedDecisions
from banksman.gateway.approvals.remembered import operations as remembered_operations
from banksman.gateway.approvals.stored_replies import ReplySlots, readable, stored_reply, valid_reply
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import APPROVE
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.errors import ErrorBody, ErrorDetail
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import StoredRequests, check_conversation, ids_once
from banksman.runs.approval.requests import INPUT_OUTCOMES, input_digests
from banksman.runs.outcome import RESULT_BYTES
from banksman.runs.ports import Clock
from banksman.runs.schema_checks.checker import SchemaChecker

operations = Operations("approvals")


@dataclass(frozen=True, slots=True)
class ProvidedInput:
    reply: ApprovalReply
    won: bool
    """Whether it is the submitted value, stored now or by an earlier attempt of the same request."""

    @property
    def outcome(self) -> InputOutcome:
        return INPUT_OUTCOMES.get(self.reply.outcome, "cancelled")


@dataclass(frozen=True, slots=True)
class Inputs:
    slots: ReplySlots
    decisions: Decisions
    schemas: SchemaChecker
    clock: Clock
    signing_key: bytes
    requests: StoredRequests

    @operations.on_frame(InputReply, "request_id", right=APPROVE, errors=(MISSING, CONFLICT, EARLY))
    async def provide(self: Providing, frame: InputReply, caller: CallerDep) -> Ack:
        """Provide the value that a workflow, or the server of a tool, requested; or decline to."""
        check_conversation(frame.conversation_id, conversation_of_approval(frame.request_id))
        ids = await ids_once(self.requests, caller, frame, {"answer": new_id("answer-")})
        provided = await self.submit(
            caller.tenant,
            frame.request_id,
            frame.value,
            decline=frame.decline,
            by=caller.user,
            reply_id=ids["answer"],
        )
        reply = provided.reply
        return Ack(
            reply_to=frame.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=reply.by,
            already_resolved=not provided.won,
            outcome=provided.outcome,
        )

    async def submit(
        self, tenant: str, request_id: str, value: JsonValue, *, decline: bool, by: str, reply_id: str
    ) -> ProvidedInput:
        """Check, sign and store a value, or that the user declined.

        Waits up to 5 seconds until the request is stored.

        Raises:
            NotReady: The request is in the log and not stored yet, or an invalid reply is being removed.
            Conflict: The request has expired.
        """
        return await self.decisions.when_stored(
            tenant, request_id, lambda: self._provide(tenant, request_id, value, decline, by, reply_id)
        )

    async def _provide(
        self, tenant: str, request_id: str, value: JsonValue, decline: bool, by: str, reply_id: str
    ) -> ProvidedInput:
        request, stored = await readable(self.slots, tenant, request_id)
        if request is None or request.input is None:
            raise NotFound("input request", request_id)
        if stored is not None:
            reply = valid_reply(stored, request, self.signing_key)
            return ProvidedInput(reply, won=reply.answer_id == reply_id)
        now = self.clock.now()
        if now > request.expires_at:
            raise Conflict(f"the request for a value expired at {request.expires_at.isoformat()}")
        if decline and value is not None:
            raise BadInput("value", value, "null with `decline`")
        if not decline:
            await self._check(tenant, request.input, value)
        reply = ApprovalReply(
            tenant=tenant,
            conversation_id=request.conversation_id,
            run_id=request.run_id,
            approval_id=request_id,
            outcome="rejected" if decline else "approved",
            by=by,
            digests=input_digests(request.input, value),
            value=value,
            decided_at=now,
            answer_id=reply_id,
        )
        winner = await stored_reply(self.slots, request, reply, self.signing_key)
        return ProvidedInput(winner, won=winner.answer_id == reply_id)

    async def _check(self, tenant: str, request: InputRequested, value: JsonValue) -> None:
        """Check a value in a process with limits, because a program of others wrote the schema."""
        if (size := json_bytes(value)) > RESULT_BYTES:
            raise BadInput("value", None, f"at most {RESULT_BYTES} bytes of JSON; it has {size}")
        is_object = request.schema_.get("type") == "object"
        if is_object and not isinstance(value, dict):
            raise BadInput("value", value, "an object")
        wrapped: JsonObject = {
            "type": "object",
            "properties": {"value": request.schema_},
            "required": ["value"],
        }
        form = ToolDefinition(
            name="request_input", description="", input_schema=request.schema_ if is_object else wrapped
        )
        values = value if is_object and isinstance(value, dict) else {"value": value}
        problem = await self.schemas.argument_problem(tenant, form, values)
        if problem is not None:
            field = f"value.{problem.parameter}" if is_object else problem.parameter
            raise BadInput(field, problem.value, problem.expected)


Deciding = Annotated[Decisions, provided(Decisions)]
Providing = Annotated[Inputs, provided(Inputs)]


@operations.add(
    "approval.reply",
    "POST /context/approvals/{approval_id}",
    right=APPROVE,
    response_model=bodies.Resolution,
    responses={
        202: {
            "model": bodies.FirstOfTwo,
            "description": "Approved by the first of two users; the calls wait",
        },
        409: {
            "model": bodies.LateDecision | ErrorBody,
            "description": "An earlier decision took effect, or the request has expired",
        },
    },
    not_over_nats="the frame `approval.reply` has the same fields",
)
async def decide_approval(
    approval_id: str,
    body: StrictBody[bodies.DecisionBody],
    decisions: Deciding,
    caller: CallerDep,
    request_id: RequestId,
) -> bodies.Resolution | Response:
    """Decide an approval request. The first decision takes effect; a later one gets 409 with the first."""
    frame = ApprovalDecision(type="approval.reply", id=request_id, approval_id=approval_id, **dict(body))
    ack = await decisions.decide(frame, caller)
    if ack.outcome == AWAITING_SECOND:
        return JSONResponse(bodies.FirstOfTwo.of(ack).model_dump(mode="json"), 202)
    if not ack.already_resolved:
        return bodies.Resolution.of(ack)
    return _late(bodies.LateDecision, ack, f"the approval was {ack.outcome} by {ack.resolved_by} before")


@operations.add(
    "input.reply",
    "POST /context/inputs/{request_id}",
    right=APPROVE,
    response_model=bodies.ProvidedValue,
    responses={
        409: {
            "model": bodies.LateValue | ErrorBody,
            "description": "An earlier value took effect, or the request is closed",
        },
    },
    not_over_nats="the frame `input.reply` has the same fields",
)
async def provide_input(
    request_id: str,
    body: StrictBody[bodies.InputBody],
    inputs: Providing,
    caller: CallerDep,
    idempotency_key: RequestId,
) -> bodies.ProvidedValue | Response:
    """Provide the value that a workflow, or the server of a tool, requested; or decline to.

    The first reply takes effect; later ones get 409.
    """
    frame = InputReply(type="input.reply", id=idempotency_key, request_id=request_id, **dict(body))
    ack = await inputs.provide(frame, caller)
    if not ack.already_resolved:
        return bodies.ProvidedValue.of(ack)
    return _late(bodies.LateValue, ack, f"the value was {ack.outcome} by {ack.resolved_by} before")


def _late(body: type[bodies.LateDecision | bodies.LateValue], ack: Ack, message: str) -> Response:
    late = body.of(ack, error=ErrorDetail(message=message, code=ErrorCode.CONFLICT))
    return JSONResponse(late.model_dump(mode="json", exclude_none=True), 409)


async def build(base: Foundation) -> None:
    services, bus, clock = base.services, base.bus, base.clock
    conversations, queue, backlog = services[Conversations], services[RunQueue], services[Backlog]
    key = base.settings.approvals.key()
    schemas = services[SchemaChecker]
    slots = ApprovalSlots(bus)
    remembered = RememberedDecisions(bus, conversations, services[Views], queue, backlog)
    requests = services[StoredRequests]
    decisions = Decisions(slots, conversations, services[Tools], schemas, clock, key, remembered, requests)
    services.add(
        slots,
        remembered,
        decisions,
        Inputs(slots, decisions, schemas, clock, key, requests),
        PendingApprovals(bus, slots, conversations, queue, backlog, clock),
    )


FEATURE = Feature((*operations, *decision_operations, *pending_operations, *remembered_operations), build)
