"""Messages to agents: work, signals, approval requests and replies, and dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import (
    ApprovalItem,
    ApprovalOutcome,
    InputRequested,
    ItemDecision,
    Remember,
)
from banksman.contracts.messages import Content
from banksman.contracts.wire import JsonValue, Stored, Timestamp, Token


class StartRun(Stored):
    """Start a run with a user's message. Message id `start:{run}`."""

    v: Literal[1] = 1
    type: Literal["start"] = "start"
    tenant: Token
    conversation_id: Token
    run_id: Token
    message_id: Token
    content: Content
    settings: RunSettings
    user: str = Field(max_length=200)


class ResumeRun(Stored):
    """Continue an open or queued run that has no owner. Message id `resume:{cause}`."""

    v: Literal[1] = 1
    type: Literal["resume"] = "resume"
    tenant: Token
    conversation_id: Token
    run_id: Token
    cause: str
    """Id of the resolved approval, of the message that steered the run, or of the queued run that is next."""
    owner_epoch: int = Field(ge=0)
    """The highest claim when the message was published. With a later claim, the message has no effect."""
    workflow: Token | None = Field(default=None, exclude_if=lambda name: name is None)
    """The workflow whose run it is: its service drives it. None for a run that agents drive."""


RunWork = Annotated[StartRun | ResumeRun, Field(discriminator="type")]


class CancelRun(Stored):
    """Cancel a run in any state, even before it started. Message id `signal:{request}`."""

    v: Literal[1] = 1
    type: Literal["cancel"] = "cancel"
    tenant: Token
    conversation_id: Token
    run_id: Token
    reason: str | None = Field(default=None, max_length=2000)
    by: str


class SteerRun(Stored):
    """Add a user's message to the open run before its next model request."""

    v: Literal[1] = 1
    type: Literal["steer"] = "steer"
    tenant: Token
    conversation_id: Token
    message_id: Token
    content: Content
    start: StartRun
    """The run to start instead if no run is open."""
    by: str


class RenameConversation(Stored):
    """Set the title of a conversation."""

    v: Literal[1] = 1
    type: Literal["rename"] = "rename"
    tenant: Token
    conversation_id: Token
    title: str = Field(max_length=200)
    request_id: Token | None = None
    """Identifies a repeated request, even after another rename."""


class DeleteConversation(Stored):
    """Delete a conversation: end its open run and commit a tombstone."""

    v: Literal[1] = 1
    type: Literal["delete"] = "delete"
    tenant: Token
    conversation_id: Token
    by: str


RunSignal = Annotated[
    CancelRun | SteerRun | RenameConversation | DeleteConversation, Field(discriminator="type")
]


class ApprovalRequest(Stored):
    """The stored approval request. The stream stores its reply under `approval.reply`."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    approval_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]
    input: InputRequested | None = Field(default=None, exclude_if=lambda request: request is None)
    """The value that a workflow requests; such a request has no items, and `approval_id` is its id."""


class ApprovalReply(Stored):
    """The stored reply to an approval request. The first stored reply is the decision."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    approval_id: Token
    outcome: ApprovalOutcome
    by: str
    decisions: tuple[ItemDecision, ...] = ()
    remember: Remember | None = None
    digests: tuple[str, ...] = ()
    """Digests of the calls that the approver saw, in the order of the request; for a requested value, those
    of the request and of the value."""
    value: JsonValue = Field(default=None, exclude_if=lambda value: value is None)
    """The value that a workflow requested. The signature covers it through `digests`."""
    decided_at: Timestamp
    answer_id: str = ""
    """Id of the client request that decided. A repeated request recognises its own reply by it; no effect
    on the decision."""
    signature: str = ""
    """Hex HMAC-SHA256 of the gateway over all fields except `answer_id`; empty in replies of agents."""


class DeadLetter(Stored):
    """A dead letter: a message that could not be handled, with everything that a replay needs."""

    v: Literal[1] = 1
    subject: str
    stream: str
    stream_seq: int
    reason: str
    payload_base64: str
    headers: dict[str, str] = Field(default_factory=dict)
    ts: Timestamp
