"""Decides approval requests: checks, signs and stores a decision. The first stored decision wins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, Literal, TypeVar

from banksman.contracts.administration import AuditInterface
from banksman.contracts.approvals import (
    ApprovalItem,
    ApprovalOutcome,
    ApprovalRequested,
    ItemDecision,
    Remember,
)
from banksman.contracts.assistants import OnReject
from banksman.contracts.errors import BadInput, Conflict, NotFound, NotReady
from banksman.contracts.frames import Ack, ApprovalDecision
from banksman.contracts.ids import conversation_of_approval, new_id
from banksman.contracts.tools import ToolDefinition, call_digest
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import ApprovalReply, ApprovalRequest, FirstApproval, LinkUse
from banksman.gateway.approvals import stored_replies
from banksman.gateway.approvals.links import digest_of_calls, use_link
from banksman.gateway.approvals.remembered import RememberedDecisions
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import approved_first, sent_items
from banksman.gateway.operation.caller import APPROVE
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.runs.idempotency import StoredRequests, check_conversation, ids_once
from banksman.runs.approval.policy import begins
from banksman.runs.ports import Clock
from banksman.runs.schema_checks.checker import SchemaChecker

NOT_READY_AFTER_S = 5.0
"""Seconds that a decision waits for its approval request to be stored."""
RETRY_S = 0.1
SHOW_AGAIN = "show the approver the current one, and send the digests of its items"
AWAITING_SECOND: Final = "awaiting_second"
"""The outcome of the first of two approvals."""
DECISION_FIELDS = ("decisions", "all", "remember", "on_reject", "digests", "link")

T = TypeVar("T")

CheckArguments = Callable[[str, JsonObject], Awaitable[None]]
"""Checks edited arguments for the tool of a name."""
OnFirst = Callable[[FirstApproval, ApprovalRequested], Awaitable[None]]
"""Receives the first of two approvals, and the request as the second approver is sent it."""


operations = Operations("approvals")


@dataclass(frozen=True, slots=True)
class SubmittedDecision:
    by: str
    decisions: tuple[ItemDecision, ...] = ()
    """One decision for every item; empty if `all` is given."""
    all: str | None = None
    """`approve` or `reject`, for every item."""
    remember: Remember | None = None
    on_reject: OnReject | None = None
    """What each rejection that does not state it does to the run."""
    digests: tuple[str, ...] = ()
    """Digests of the items that the user was sent, in their order; empty if the client sent none."""
    link: str | None = None
    """The link that led the user to the request; None for a decision without one."""
    decision_id: str = field(default_factory=lambda: new_id("answer-"))
    """Identifies the request; its repeats have the same id."""
    interface: AuditInterface = "http"

    @property
    def rejects(self) -> bool:
        """Whether it rejects every call."""
        return self.all == "reject" or (
            bool(self.decisions) and all(one.decision == "reject" for one in self.decisions)
        )


@dataclass(frozen=True, slots=True)
class DecisionResult:
    reply: ApprovalReply | FirstApproval
    won: bool
    """Whether the stored result is the submitted decision, stored now or by an earlier attempt."""
    sent: ApprovalRequested | None = None
    """The request as the second approver is sent it; None unless this is the first of two approvals."""

    @property
    def outcome(self) -> ApprovalOutcome | Literal["awaiting_second"]:
        return AWAITING_SECOND if isinstance(self.reply, FirstApproval) else self.reply.outcome


@dataclass(frozen=True, slots=True)
class Decisions:
    slots: stored_replies.ReplySlots
    conversations: Conversations
    tools: Tools
    schemas: SchemaChecker
    clock: Clock
    signing_key: bytes
    remembered: RememberedDecisions
    requests: StoredRequests
    on_first: list[OnFirst] = field(default_factory=list[OnFirst])
    """Called after each first approval, again for a repeat of its request."""

    @operations.on_frame(ApprovalDecision, "approval_id", right=APPROVE, errors=(MISSING, CONFLICT, EARLY))
    async def decide(self: Service, frame: ApprovalDecision, caller: CallerDep) -> Ack:
        """Decide an approval request."""
        check_conversation(frame.conversation_id, conversation_of_approval(frame.approval_id))
        if (frame.all is None) == (not frame.decisions):
            raise BadInput("decisions", None, "either `decisions` or `all`, and not both")
        ids = await ids_once(self.requests, caller, frame, {"answer": new_id("answer-")})
        given = {name: getattr(frame, name) for name in DECISION_FIELDS}
        submitted = SubmittedDecision(
            by=caller.user, decision_id=ids["answer"], interface=caller.interface, **given
        )
        result = await self.submit(caller.tenant, frame.approval_id, submitted)
        reply = result.reply
        return Ack(
            reply_to=frame.id,
            conversation_id=reply.conversation_id,
            run_id=reply.run_id,
            resolved_by=None if result.outcome == AWAITING_SECOND else reply.by,
            already_resolved=not result.won,
            outcome=result.outcome,
        )

    async def submit(self, tenant: str, approval_id: str, submitted: SubmittedDecision) -> DecisionResult:
        """Check, sign and store a decision; raises as `decide`.

        A client may decide before the agent has stored the request that the client saw in the log. Such a
        decision waits up to 5 seconds, and then raises `NotReady`.
        """
        tools: Mapping[str, ToolDefinition] = {}
        if any(decision.arguments is not None for decision in submitted.decisions):
            tools = {tool.name: tool for tool in await self.tools.registered(tenant)}
        if submitted.remember is not None:
            await self.remembered.note(tenant, approval_id)
        check = partial(check_arguments, self.schemas, tenant, tools)
        attempt = partial(
            decide, self.slots, self.clock, self.signing_key, tenant, approval_id, submitted, check
        )
        result = await self.when_stored(tenant, approval_id, attempt)
        if result.sent is not None and isinstance(result.reply, FirstApproval):
            for notify in self.on_first:
                await notify(result.reply, result.sent)
        return result

    async def when_stored(self, tenant: str, approval_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, which is retried for 5 s while its request is not stored yet."""
        deadline = asyncio.get_running_loop().time() + NOT_READY_AFTER_S
        while True:
            try:
                return await self._attempt(tenant, approval_id, attempt)
            except NotReady:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _attempt(self, tenant: str, approval_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except NotFound:
            view = await self.conversations.view_of_approval(tenant, approval_id)
            if view is None or not (approval_id in view.approvals or approval_id in view.inputs):
                # A new leader of the stream may have lacked the request when the slots were read, and another
                # user may have decided it since. The second attempt then finds the request and the decision.
                return await attempt()
        raise NotReady(f"approval {approval_id!r} is not stored yet", retry_after_s=0.5)


Service = Annotated[Decisions, provided(Decisions)]


class ContentChanged(Conflict):
    """The approver was sent another content than the request has now, which `details` contains."""

    def __init__(self, current: ApprovalRequested) -> None:
        text = f"approval {current.approval_id!r} has another content than was shown: {SHOW_AGAIN}"
        super().__init__(text)
        self.details = {"approval": current.model_dump(mode="json", exclude={"type"})}


def _as_sent(request: ApprovalRequest, first: FirstApproval | None) -> ApprovalRequested:
    return ApprovalRequested(
        approval_id=request.approval_id,
        expires_at=request.expires_at,
        items=sent_items(request.items, first),
        terms=request.terms,
        on_reject=request.on_reject,
        first=first and approved_first(first),
    )


def _check_content(
    request: ApprovalRequest, first: FirstApproval | None, submitted: SubmittedDecision
) -> None:
    """Raise `ContentChanged` unless the digests of a decision are of the content that is sent now.

    They may be missing from a rejection, and as long as the content is that of the request.
    """
    sent = _as_sent(request, first)
    before, now = (tuple(item.digest for item in one.items) for one in (request, sent))
    if submitted.digests != now and (submitted.digests, before) != ((), now):
        if not (submitted.rejects and submitted.digests in ((), before)):
            raise ContentChanged(sent)


async def decide(
    slots: stored_replies.ReplySlots,
    clock: Clock,
    key: bytes,
    tenant: str,
    approval_id: str,
    submitted: SubmittedDecision,
    check: CheckArguments,
) -> DecisionResult:
    """Check, sign and store a decision. `check` raises `BadInput` for edited arguments that do not fit.

    Raises:
        NotReady: An invalid stored reply is about to be removed.
        Conflict: The request has expired, was approved by the same user or otherwise before, or has another
            content than the user saw.
    """
    request, stored = await stored_replies.readable(slots, tenant, approval_id)
    if request is not None and request.input is not None:
        raise NotFound("approval", approval_id)
    if stored is not None:
        return _result(stored_replies.valid_reply(stored, request, key), submitted)
    if request is None:
        raise NotFound("approval", approval_id)
    now = clock.now()
    if now > request.expires_at:
        raise Conflict(f"approval {approval_id!r} expired at {request.expires_at.isoformat()}")
    first = None
    with suppress(Conflict) if submitted.rejects else nullcontext():
        first = await stored_replies.read_first(slots, request, key)
    if first is not None and first.answer_id == submitted.decision_id:
        return DecisionResult(first, won=True, sent=_as_sent(request, first))
    _check_content(request, first, submitted)
    decisions = tuple([await _item_decision(item, submitted, check, first) for item in request.items])
    known = {item.tool_call_id for item in request.items}
    for decision in submitted.decisions:
        if decision.tool_call_id not in known:
            raise BadInput("decisions.tool_call_id", decision.tool_call_id, "a call of this approval")
    reply = ApprovalReply(
        tenant=tenant,
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        approval_id=approval_id,
        outcome=_outcome(decisions),
        by=submitted.by,
        decisions=decisions,
        # Who rejects what another user approved does not remember it for as long.
        remember=submitted.remember or (first.remember if first and not submitted.rejects else None),
        digests=tuple(item.digest for item in request.items),
        decided_at=now,
        answer_id=submitted.decision_id,
        interface=submitted.interface,
    )
    if submitted.link is not None:
        use = LinkUse(by=submitted.by, answer_id=submitted.decision_id, at=now)
        shown = (request, _as_sent(request, first))
        calls = [digest_of_calls([item.digest for item in one.items]) for one in shown]
        await use_link(slots, submitted.link, request, calls, use, now, key)
    if request.approvers > 1 and reply.outcome != "rejected":
        if first is None:
            first = await stored_replies.store_first(slots, reply, key)
            if first.answer_id == reply.answer_id:
                return DecisionResult(first, won=True, sent=_as_sent(request, first))
            _check_content(request, first, submitted)
        reply = stored_replies.confirming(reply, first)
    return _result(await stored_replies.stored_reply(slots, request, reply, key), submitted)


def _result(reply: ApprovalReply, submitted: SubmittedDecision) -> DecisionResult:
    decided = (reply, reply.first) if reply.first else (reply,)
    return DecisionResult(reply, won=any(one.answer_id == submitted.decision_id for one in decided))


async def _item_decision(
    item: ApprovalItem, submitted: SubmittedDecision, check: CheckArguments, first: FirstApproval | None
) -> ItemDecision:
    """Return the decision about a call; without arguments, the call is as the approver was sent it."""
    before = {one.tool_call_id: one for one in first.decisions}.get(item.tool_call_id) if first else None
    if submitted.all == "approve":
        return before or ItemDecision(tool_call_id=item.tool_call_id, decision="approve")
    if submitted.all == "reject":
        return ItemDecision(tool_call_id=item.tool_call_id, decision="reject", on_reject=submitted.on_reject)
    given = [decision for decision in submitted.decisions if decision.tool_call_id == item.tool_call_id]
    if len(given) != 1:
        raise BadInput("decisions", item.tool_call_id, "exactly one decision for every item of the approval")
    decision = given[0]
    if decision.decision == "reject" and decision.on_reject is None:
        decision = decision.model_copy(update={"on_reject": submitted.on_reject})
    _check_covers(item, decision, submitted.remember or (first and first.remember))
    if decision.arguments is not None and decision.decision == "approve":
        if not item.editable:
            raise BadInput("decisions.arguments", item.name, "no edited arguments for this call")
        await check(item.name, decision.arguments)
        # Unchanged arguments are not an edit, so the model is not notified of one.
        if call_digest(item.name, decision.arguments, item.network) == item.digest:
            return decision.model_copy(update={"arguments": None})
    if before is not None and decision.arguments is None and decision.decision == before.decision:
        return before
    return decision


def _check_covers(item: ApprovalItem, decision: ItemDecision, remember: Remember | None) -> None:
    """Raise `BadInput` if a decision cannot cover the calls that it names."""
    arguments = item.arguments if decision.arguments is None else decision.arguments
    match decision.covers:
        case "begins" if begins(item.name, arguments) is None:
            raise BadInput(
                "decisions.covers", "begins", "a call with `begins`, whose command has first words"
            )
        case "tool" if remember == "conversation":
            raise BadInput("decisions.covers", "tool", "`begins` or null for a conversation")
        case "begins" | "tool" if remember is None:
            raise BadInput("remember", None, "`run`, or `conversation`, for a decision with `covers`")
        case _:
            pass


async def check_arguments(
    schemas: SchemaChecker,
    tenant: str,
    tools: Mapping[str, ToolDefinition],
    name: str,
    arguments: JsonObject,
) -> None:
    """Raise `BadInput` if edited arguments do not fit the tool of this name, or it is not registered."""
    tool = tools.get(name)
    if tool is None:
        raise BadInput("decisions.arguments", name, "a tool that is still registered")
    problem = await schemas.argument_problem(tenant, tool, arguments)
    if problem is not None:
        raise BadInput(f"decisions.arguments.{problem.parameter}", problem.value, problem.expected)


def _outcome(decisions: tuple[ItemDecision, ...]) -> ApprovalOutcome:
    kinds = {decision.decision for decision in decisions}
    if kinds == {"approve"}:
        return "approved"
    return "rejected" if kinds == {"reject"} else "mixed"
