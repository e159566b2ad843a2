"""The bodies of requests about approvals and inputs, and of their replies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.approvals import ApprovalOutcome, InputOutcome, ItemDecision, Remember
from banksman.contracts.assistants import ApprovalTerms, OnReject
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp, Token
from banksman.gateway.conversations.bodies import ConversationApproval
from banksman.gateway.operation.errors import ErrorDetail
from banksman.gateway.operation.parameters import RequestBody
from banksman.gateway.runs.bodies import AcceptedRequest


class DecisionBody(RequestBody):
    """A decision on an approval request: one for every item, or `all`."""

    decisions: tuple[ItemDecision, ...] = Field(default=(), max_length=1000)
    all: Literal["approve", "reject"] | None = None
    remember: Remember | None = None
    on_reject: OnReject | None = None
    """What each rejection that does not state it does to the run; null for what the assistant states."""
    digests: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=1000)
    """Digests of the items that the approver was sent, in their order. If they are not those of the current
    content, the decision is refused with `conflict`, and its details have that content. They may be empty
    unless a first approval changed the content."""
    link: str | None = Field(default=None, max_length=1000)
    """The signed part of the link to the request, which allows one decision; null without a link."""


class InputBody(RequestBody):
    """The value that a workflow, or the server of a tool, requested."""

    value: JsonValue = None
    decline: bool = False
    """True provides no value."""


class PendingApproval(ConversationApproval):
    """An open approval request of a tenant."""

    conversation_id: Token
    requested_at: Timestamp
    title: str = ""
    """The title of the conversation."""
    requested_by: str = ""
    """The user who created the conversation; empty if unknown."""
    terms: ApprovalTerms | None = None
    """The terms of the decision; null for one approver and no escalation."""
    escalates_at: Timestamp | None = None
    """Time of its escalation; null for no escalation."""
    escalated: bool = False
    """Whether it was escalated."""
    set_aside_by: tuple[str, ...] = ()
    """The users who set it aside."""
    for_you: bool = True
    """Whether it is in the caller's inbox: not set aside by the caller, nor awaiting escalation to them."""


class ApprovalPage(Stored):
    """A page of the open approval requests, oldest first."""

    items: tuple[PendingApproval, ...]
    next: int | None
    """`after` of the next page; null at the end."""


class PendingInput(Stored):
    """An open request for a value, of a workflow or of the server of a tool."""

    request_id: Token
    conversation_id: Token
    run_id: Token
    message: str
    schema_: JsonObject = Field(alias="schema")
    expires_at: Timestamp
    server: str | None = None
    """The MCP server that requests the value and receives it; null for a workflow."""


class InputPage(Stored):
    """A page of the open requests for a value, oldest first."""

    items: tuple[PendingInput, ...]
    next: int | None
    """`after` of the next page; null at the end."""


class Resolution(AcceptedRequest):
    """The decision that took effect."""

    resolved_by: str
    already_resolved: bool
    """Whether a decision before the submitted one took effect."""
    outcome: ApprovalOutcome


class FirstOfTwo(AcceptedRequest):
    """The first of two approvals: the calls wait until another user approves the same."""

    outcome: Literal["awaiting_second"]


class ProvidedValue(AcceptedRequest):
    """The value that took effect."""

    resolved_by: str
    already_resolved: bool
    """Whether a value before the submitted one took effect, or the request was already closed."""
    outcome: InputOutcome


class LateValue(ProvidedValue):
    """An earlier value took effect, or the request was already closed."""

    error: ErrorDetail


class LateDecision(Resolution):
    """An earlier decision took effect."""

    error: ErrorDetail
