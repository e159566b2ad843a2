"""Provides the values that workflows request: checks, signs and stores them. The first stored value wins."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.approvals import InputOutcome, InputRequested
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.frames import Ack, InputReply
from banksman.contracts.ids import conversation_of_approval, new_id
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, json_bytes
from banksman.contracts.work import ApprovalReply
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.approvals.stored_replies import ReplySlots, readable, stored_reply, valid_reply
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.idempotency import StoredRequests, check_conversation, ids_once
from banksman.runs.approval.requests import input_digests
from banksman.runs.outcome import RESULT_BYTES
from banksman.runs.ports import Clock
from banksman.runs.schema_checks.checker import SchemaChecker


@dataclass(frozen=True, slots=True)
class ProvidedInput:
    reply: ApprovalReply
    won: bool
    """Whether it is the submitted value, stored now or by an earlier attempt of the same request."""

    @property
    def outcome(self) -> InputOutcome:
        match self.reply.outcome:
            case "approved":
                return "provided"
            case "expired":
                return "expired"
            case _:
                return "cancelled"


@dataclass(frozen=True, slots=True)
class Inputs:
    slots: ReplySlots
    decisions: Decisions
    schemas: SchemaChecker
    clock: Clock
    signing_key: bytes
    requests: StoredRequests

    async def reply(self, caller: Caller, request: InputReply) -> Ack:
        """Store the value that a user provides; a repeated request returns the result of the first one."""
        check_conversation(request.conversation_id, conversation_of_approval(request.request_id))
        ids = await ids_once(self.requests, caller, request, {"answer": new_id("answer-")})
        provided = await self.submit(
            caller.tenant, request.request_id, request.value, by=caller.user, reply_id=ids["answer"]
        )
        reply = provided.reply
        return Ack(
            reply_to=request.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=reply.by,
            already_resolved=not provided.won,
            outcome=provided.outcome,
        )

    async def submit(
        self, tenant: str, request_id: str, value: JsonValue, *, by: str, reply_id: str
    ) -> ProvidedInput:
        """Check, sign and store a value. Waits up to 5 seconds until the request is stored.

        Raises:
            NotReady: The request is in the log and not stored yet, or an invalid reply is being removed.
            Conflict: The request has expired.
        """
        return await self.decisions.when_stored(
            tenant, request_id, lambda: self._provide(tenant, request_id, value, by, reply_id)
        )

    async def _provide(
        self, tenant: str, request_id: str, value: JsonValue, by: str, reply_id: str
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
        if (size := json_bytes(value)) > RESULT_BYTES:
            raise BadInput("value", None, f"at most {RESULT_BYTES} bytes of JSON; it has {size}")
        await self._check(tenant, request.input, value)
        reply = ApprovalReply(
            tenant=tenant,
            conversation_id=request.conversation_id,
            run_id=request.run_id,
            approval_id=request_id,
            outcome="approved",
            by=by,
            digests=input_digests(request.input, value),
            value=value,
            decided_at=now,
            answer_id=reply_id,
        )
        winner = await stored_reply(self.slots, request, reply, self.signing_key)
        return ProvidedInput(winner, won=winner.answer_id == reply_id)

    async def _check(self, tenant: str, request: InputRequested, value: JsonValue) -> None:
        """Check a value in a process with limits, because a tenant's program wrote the schema."""
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
