"""The bodies of requests and responses that only HTTP has. OpenAPI is generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from banksman.contracts.assistants import Branch, ConversationSettings, RunOverrides
from banksman.contracts.events import ApprovalOutcome, InputOutcome, ItemDecision, Remember
from banksman.contracts.frames import Ack
from banksman.contracts.messages import Content
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Timestamp, Token
from banksman.gateway.operation.errors import ErrorDetail
from banksman.gateway.service.bodies import LogHead, RequestBody


class NewConversation(RequestBody):
    """A conversation to create."""

    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    system_prompt_id: Token | None = None
    model: str | None = Field(default=None, max_length=200)
    settings: ConversationSettings = ConversationSettings()


class NewMessage(RequestBody):
    """A user message, with settings of the run that it starts."""

    content: Content
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)


class NewRun(NewMessage):
    """A user message that starts a run."""

    mode: Literal["queue", "steer"] = "queue"
    branch: Branch | None = None
    """The message after which the run continues the conversation; None for the newest message."""
    attachments: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(default=(), max_length=50)


class NewChat(NewConversation, NewMessage):
    """A user message that starts a run in a new conversation."""


class ContextChat(NewChat):
    """A user message that starts a run in a new conversation, or in the named one."""

    conversation_id: Token | None = None


class CancelBody(RequestBody):
    """The reason for cancelling a run."""

    reason: str | None = Field(default=None, max_length=2000)


class DecisionBody(RequestBody):
    """A decision on an approval request: one for every item, or `all`."""

    decisions: tuple[ItemDecision, ...] = Field(default=(), max_length=1000)
    all: Literal["approve", "reject"] | None = None
    remember: Remember | None = None
    digests: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=1000)
    """Digests of the calls that the approver saw, in the order of the request. A decision whose digests
    differ from those of the request is refused with `conflict`; empty skips the check."""
    link: str | None = Field(default=None, max_length=1000)
    """The signed part of the link to the request, which allows one decision; null without a link."""


class InputBody(RequestBody):
    """The value that a workflow requested."""

    value: JsonValue


class NewWorkflowRun(RequestBody):
    """The parameters of a workflow run."""

    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None


class EventFrame(Stored):
    """A stored event, as the websocket sends it. `/v1/schemas/ws.json` describes `data` for each type."""

    type: str
    seq: int
    prev_seq: int
    log_epoch: str
    ts: Timestamp
    conversation_id: str
    run_id: str | None
    iteration: int | None = None
    data: JsonObject


class EventPage(LogHead):
    """Stored events in order, and the head of the log."""

    items: tuple[EventFrame, ...]
    next: int | None
    """`after_seq` of the next page; null at the end."""


class AcceptedRequest(Stored):
    """The ids of an accepted request."""

    conversation_id: str
    run_id: str

    @classmethod
    def of(cls, ack: Ack, **more: Any) -> Self:
        """Return the body for an acknowledgement."""
        return cls(**ack.model_dump(include=set(cls.model_fields), exclude_none=True), **more)


class AcceptedRun(AcceptedRequest):
    """The ids of a stored start."""

    message_id: str
    status: Literal["queued"] = "queued"


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
