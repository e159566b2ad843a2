"""The bodies that HTTP and NATS share. OpenAPI and AsyncAPI are generated from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Generic, Self, TypeVar

from pydantic import Field

from banksman.contracts.assistants import ApprovalTerms, ConversationRecord
from banksman.contracts.events import (
    ApprovalItem,
    ItemDecision,
    Outcome,
    Remember,
    RunError,
    RunStatus,
    TrackedCall,
)
from banksman.contracts.messages import Usage
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token, Wire
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.conversations.runs import FoundRun

T = TypeVar("T")


class RequestBody(Wire):
    """The body of a request."""


class Rename(RequestBody):
    """The new title of a conversation."""

    title: str = Field(max_length=200)


class ConversationChange(RequestBody):
    """The changes of a conversation; omitted fields are unchanged."""

    title: str | None = Field(default=None, max_length=200)
    pinned: bool | None = None
    archived: bool | None = None


class ExportedConversation(RequestBody):
    """A conversation as the page exports it: its record, and its events as frames."""

    conversation: JsonObject = Field(default_factory=dict)
    """Its record, of which only the title is read."""
    events: tuple[JsonObject, ...] = Field(min_length=1, max_length=50_000)


class WorkflowText(RequestBody):
    """A text with which a user starts a workflow."""

    text: str = Field(min_length=1, max_length=20_000)
    """A command such as `/create_project demo template=web`, or plain language, which a model reads."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model` for plain language; None for the model of the default assistant."""


class Listing(Stored, Generic[T]):
    """A list in one page."""

    items: tuple[T, ...]
    next: None = None


class ConversationPage(Stored):
    """A page of the list of conversations, newest first."""

    items: tuple[ConversationRecord, ...]
    next: str | None
    """`cursor` of the next page; null at the end."""


class RunApproval(Stored):
    """An open approval request of a run."""

    approval_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]


class ConversationApproval(RunApproval):
    """An open approval request of a conversation."""

    run_id: Token


class ApprovedFirst(Stored):
    """The first of two approvals."""

    by: str
    decided_at: Timestamp
    decisions: tuple[ItemDecision, ...]
    remember: Remember | None


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
    first: ApprovedFirst | None = None
    """The first of two approvals, which another user must repeat; null for none."""
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
    """A workflow's open request for a value."""

    request_id: Token
    conversation_id: Token
    run_id: Token
    message: str
    schema_: JsonObject = Field(alias="schema")
    expires_at: Timestamp

    @classmethod
    def of(cls, request: ApprovalRequest) -> Self | None:
        """Return the body of a stored request; None for an approval request."""
        if request.input is None:
            return None
        return cls(
            request_id=request.approval_id,
            conversation_id=request.conversation_id,
            run_id=request.run_id,
            message=request.input.message,
            schema=request.input.schema_,
            expires_at=request.expires_at,
        )


class InputPage(Stored):
    """A page of the open requests for a value, oldest first."""

    items: tuple[PendingInput, ...]
    next: int | None
    """`after` of the next page; null at the end."""


class ActiveRun(Stored):
    """The open run of a conversation."""

    run_id: Token
    status: RunStatus


class LogHead(Stored):
    """The head of a conversation's log."""

    head_seq: int
    """Number of the last event; 0 for none."""
    oldest_seq: int
    """Number of the oldest stored event."""
    log_epoch: str
    """Changes when the log was restored from a backup."""


class Conversation(ConversationRecord, LogHead):
    """A conversation with the head of its log."""

    active_run: ActiveRun | None
    pending_approvals: tuple[ConversationApproval, ...]


class Run(Stored):
    """An open run."""

    run_id: Token
    conversation_id: Token
    message_id: str | None
    status: RunStatus | Outcome
    model: str | None
    iterations: int
    asked_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    trace_id: str | None = Field(default=None, exclude_if=lambda trace: trace is None)
    """Id of the client's W3C trace that includes the run; absent without one."""
    pending_approvals: tuple[RunApproval, ...]


class EndedRun(Run):
    """A run with its outcome."""

    content: str
    service: str
    tool_calls: tuple[TrackedCall, ...]
    tool_calls_ref: str | None
    """Path of all complete calls, if `tool_calls` lacks some or has cut texts."""
    max_iterations_reached: bool
    usage: Usage
    error: RunError | None


def run_body(found: FoundRun) -> Run:
    """Return the body that shows a run: an `EndedRun` if its outcome is known."""
    body: dict[str, Any] = {
        **asdict(found.view),
        "conversation_id": found.conversation_id,
        "pending_approvals": [approval.model_dump() for approval in found.approvals],
    }
    return Run(**body) if found.outcome is None else EndedRun(**{**body, **dict(found.outcome)})
