"""Work: what asks an agent to act, and the two slots where an approval is asked and answered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.assistants import RunSettings
from banksman.contracts.events import ApprovalItem, ApprovalOutcome, ItemDecision, Remember
from banksman.contracts.messages import Content
from banksman.contracts.wire import Stored, Timestamp, Token


class StartRun(Stored):
    """A user message that wants an answer. Message id `start:{run}`."""

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
    """An open or queued run that nobody owns should go on. Message id `resume:{cause}`."""

    v: Literal[1] = 1
    type: Literal["resume"] = "resume"
    tenant: Token
    conversation_id: Token
    run_id: Token
    cause: str
    """The approval that was resolved, the message that steered, or the queued run whose turn it is."""
    owner_epoch: int = Field(ge=0)
    """The highest claim when it was published. Once anybody has claimed since, it has done its work."""


RunWork = Annotated[StartRun | ResumeRun, Field(discriminator="type")]


class CancelRun(Stored):
    """Ends a run in whatever state it is, also before it started. Message id `signal:{request}`."""

    v: Literal[1] = 1
    type: Literal["cancel"] = "cancel"
    tenant: Token
    conversation_id: Token
    run_id: Token
    reason: str | None = Field(default=None, max_length=2000)
    by: str


class SteerRun(Stored):
    """A message for the open run, before its next model request."""

    v: Literal[1] = 1
    type: Literal["steer"] = "steer"
    tenant: Token
    conversation_id: Token
    message_id: Token
    content: Content
    start: StartRun
    """The run to start instead when none is open."""
    by: str


class RenameConversation(Stored):
    """Gives a conversation a title."""

    v: Literal[1] = 1
    type: Literal["rename"] = "rename"
    tenant: Token
    conversation_id: Token
    title: str = Field(max_length=200)
    request_id: Token | None = None
    """By which a repeat is known, also when another title came after it."""


class DeleteConversation(Stored):
    """Ends what is open and leaves a tombstone."""

    v: Literal[1] = 1
    type: Literal["delete"] = "delete"
    tenant: Token
    conversation_id: Token
    by: str


RunSignal = Annotated[
    CancelRun | SteerRun | RenameConversation | DeleteConversation, Field(discriminator="type")
]


class ApprovalRequest(Stored):
    """The stored question; its answer is stored beside it."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    approval_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]


class ApprovalReply(Stored):
    """The stored answer. The first one stored is the decision, whoever wrote it."""

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
    """Digests of the calls as they were shown, in the order of the request."""
    decided_at: Timestamp
    answer_id: str = ""
    """Of the request that gave it: a repeat of the request knows its answer by this. It decides nothing."""
    signature: str = ""
    """Hex HMAC-SHA256 of the gateway over all but `answer_id`; empty for what agents settle themselves."""


class DeadLetter(Stored):
    """Poison, kept with all that is needed to replay it."""

    v: Literal[1] = 1
    subject: str
    stream: str
    stream_seq: int
    reason: str
    payload_base64: str
    headers: dict[str, str] = Field(default_factory=dict)
    ts: Timestamp
