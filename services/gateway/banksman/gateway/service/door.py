"""The gateway's side: accepting a run once for each request, and deciding an approval once for all doors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from banksman.contracts.errors import BadInput, Conflict, NotReady
from banksman.contracts.events import ApprovalItem, ApprovalOutcome, ItemDecision, Remember
from banksman.contracts.ids import digest, new_id
from banksman.contracts.tools import call_digest
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import ApprovalReply, ApprovalRequest, RunSignal, StartRun
from banksman.runs.approvals import problem, sign
from banksman.runs.ports import Clock
from banksman.runs.schemas import argument_problem


class RequestMemory(Protocol):
    """KV `idempotency`: what was answered to a request id, for 24 hours."""

    async def remember(self, tenant: str, request_id: str, note: RequestNote) -> RequestNote:
        """Store a note unless one is stored; return what is stored."""
        ...


class Intake(Protocol):
    """The stream of runs, as a gateway may use it."""

    async def start(self, work: StartRun) -> None:
        """Store a start under the message id `start:{run}`."""
        ...

    async def signal(self, signal: RunSignal, request_id: str) -> None:
        """Store a signal under the message id `signal:{request}`."""
        ...


class ApprovalSlots(Protocol):
    """The slots of an approval, as a gateway may use them."""

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """The stored question and answer, from the leader."""
        ...

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        """Store an answer unless one is stored; return what the slot holds."""
        ...


@dataclass(frozen=True, slots=True)
class RequestNote:
    """What a request id stands for."""

    body_digest: str
    """SHA-256 of the request's body: another body under the same id is a conflict."""
    ids: Mapping[str, str]
    """The ids it was answered with."""
    meaning_digest: str | None = None
    """SHA-256 of what the body says beyond defaults, so the same for versions that know of more fields; None
    in notes of older gateways."""

    def is_of(self, other: RequestNote) -> bool:
        """Whether both are of the same request."""
        if self.meaning_digest is None or other.meaning_digest is None:
            return self.body_digest == other.body_digest
        return self.meaning_digest == other.meaning_digest


async def once(
    memory: RequestMemory,
    tenant: str,
    request_id: str,
    body: bytes,
    ids: Mapping[str, str],
    *,
    meaning: bytes | None = None,
) -> Mapping[str, str]:
    """The ids that belong to a request: those given, or those it was answered with before.

    Args:
        memory: Where requests are kept.
        tenant: Whose request.
        request_id: Its id among those of the tenant.
        body: What was asked.
        ids: What it shall be answered with.
        meaning: What was asked without what is as it is by default, which a version that knows of fewer
            fields writes alike; None where there is no such form.

    Raises:
        Conflict: the id was used with another body.
    """
    note = RequestNote(digest(body), ids, None if meaning is None else digest(meaning))
    stored = await memory.remember(tenant, request_id, note)
    if not stored.is_of(note):
        raise Conflict(f"request id {request_id!r} was used before with another body")
    return stored.ids


@dataclass(frozen=True, slots=True)
class Verdict:
    """What somebody says to an open question."""

    by: str
    decisions: tuple[ItemDecision, ...] = ()
    """One for every item; empty when `all` is given."""
    all: str | None = None
    """`approve` or `reject`, for every item alike."""
    remember: Remember | None = None
    answer_id: str = field(default_factory=lambda: new_id("answer-"))
    """The same for every repeat of a request, and for no other request."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a verdict."""

    reply: ApprovalReply
    """The stored answer."""
    won: bool
    """Whether it is this verdict, stored now or by an earlier try of its request."""


async def decide(
    slots: ApprovalSlots,
    clock: Clock,
    key: bytes,
    tenant: str,
    approval_id: str,
    verdict: Verdict,
    schemas: Mapping[str, JsonObject],
) -> Decided:
    """The one function every door ends in: check, sign, store; the first stored answer wins.

    Args:
        slots: where the question and the answer are kept.
        clock: for the moment of the decision.
        key: the gateways' signing key.
        tenant: the caller's.
        approval_id: which question.
        verdict: the caller's answer.
        schemas: the input schema of each tool asked about, for edited arguments.

    Raises:
        NotReady: the question is not stored yet, or never was, or an answer that must not be honoured is
            still in its slot; the caller retries for 5 s.
        BadInput: the decisions do not fit the question, or edited arguments fail their schema.
        Conflict: the question has expired.
    """
    request, stored = await slots.read(tenant, approval_id)
    if stored is not None:
        return _decided(_honoured(stored, request, key), verdict)
    if request is None:
        raise NotReady(f"approval {approval_id!r} is not stored yet", retry_after_s=0.5)
    now = clock.now()
    if now > request.expires_at:
        raise Conflict(f"approval {approval_id!r} expired at {request.expires_at.isoformat()}")
    decisions = tuple(_decision(item, verdict, schemas) for item in request.items)
    _check_strangers(request, verdict)
    reply = ApprovalReply(
        tenant=tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=approval_id,
        outcome=_outcome(decisions),
        by=verdict.by,
        decisions=decisions,
        remember=verdict.remember,
        digests=tuple(item.digest for item in request.items),
        decided_at=now,
        answer_id=verdict.answer_id,
    )
    winner = await slots.settle(sign(reply, key))
    return _decided(_honoured(winner, request, key), verdict)


def _decided(reply: ApprovalReply, verdict: Verdict) -> Decided:
    return Decided(reply, won=reply.answer_id == verdict.answer_id)


def _honoured(stored: ApprovalReply, request: ApprovalRequest | None, key: bytes) -> ApprovalReply:
    if problem(stored, request, key) is not None:
        raise NotReady(f"approval {stored.approval_id!r} is open again in a moment", retry_after_s=0.5)
    return stored


def _decision(item: ApprovalItem, verdict: Verdict, schemas: Mapping[str, JsonObject]) -> ItemDecision:
    if verdict.all == "approve":
        return ItemDecision(tool_call_id=item.tool_call_id, decision="approve")
    if verdict.all == "reject":
        return ItemDecision(tool_call_id=item.tool_call_id, decision="reject")
    given = [decision for decision in verdict.decisions if decision.tool_call_id == item.tool_call_id]
    if len(given) != 1:
        raise BadInput("decisions", item.tool_call_id, "exactly one decision for every item of the approval")
    decision = given[0]
    if decision.arguments is not None and decision.decision == "approve":
        if not item.editable:
            raise BadInput("decisions.arguments", item.name, "no edited arguments for this call")
        check_arguments(item.name, decision.arguments, schemas)
        if call_digest(item.name, decision.arguments, item.network) == item.digest:
            return decision.model_copy(update={"arguments": None})
    return decision


def check_arguments(name: str, arguments: JsonObject, schemas: Mapping[str, JsonObject]) -> None:
    """Check edited arguments against the tool's schema.

    Raises:
        BadInput: naming the argument and what was expected; or that the tool is gone.
    """
    schema = schemas.get(name)
    if schema is None:
        raise BadInput("decisions.arguments", name, "a tool that is still registered")
    problem = argument_problem(schema, arguments)
    if problem is not None:
        raise BadInput(f"decisions.arguments.{problem.parameter}", problem.value, problem.expected)


def _check_strangers(request: ApprovalRequest, verdict: Verdict) -> None:
    known = {item.tool_call_id for item in request.items}
    for decision in verdict.decisions:
        if decision.tool_call_id not in known:
            raise BadInput("decisions.tool_call_id", decision.tool_call_id, "a call of this approval")


def _outcome(decisions: tuple[ItemDecision, ...]) -> ApprovalOutcome:
    kinds = {decision.decision for decision in decisions}
    if kinds == {"approve"}:
        return "approved"
    return "rejected" if kinds == {"reject"} else "mixed"
