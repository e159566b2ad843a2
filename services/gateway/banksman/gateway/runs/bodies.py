"""The bodies of requests about runs, and of their replies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from banksman.contracts.assistants import Branch, RunOverrides
from banksman.contracts.events import Outcome, RunError, RunStatus, TrackedCall
from banksman.contracts.frames import Ack, ChatSend
from banksman.contracts.messages import PERSON, Content, Provenance, Usage
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token
from banksman.gateway.conversations.bodies import NewConversation, RunApproval
from banksman.gateway.operation.parameters import RequestBody
from banksman.gateway.runs.runs import FoundRun


class NewMessage(RequestBody):
    """A user message, with settings of the run that it starts."""

    content: Content
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)
    provenance: Provenance = PERSON
    """Who wrote the message. A client states it if a person did not type all of it."""

    def sent(self, request_id: str, conversation_id: str) -> ChatSend:
        fields = {name: getattr(self, name) for name in NewMessage.model_fields}
        return ChatSend(type="chat.send", id=request_id, conversation_id=conversation_id, **fields)


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


class AcceptedRequest(Stored):
    """The ids of an accepted request."""

    conversation_id: str
    run_id: str

    @classmethod
    def of(cls, ack: Ack, **more: Any) -> Self:
        return cls(**ack.model_dump(include=set(cls.model_fields), exclude_none=True), **more)


class AcceptedRun(AcceptedRequest):
    """The ids of a stored start."""

    message_id: str
    status: Literal["queued"] = "queued"


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
    structured_output: JsonObject | None = Field(default=None, exclude_if=lambda output: output is None)
    """The content as an object that fits the `response_schema` of the run; absent without such a schema."""
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


# Runs as tasks of A2A. Webhooks notify the receivers; neither they nor A2A import the other.
JsonDict = dict[str, Any]

STATES = {
    "queued": "TASK_STATE_SUBMITTED",
    "running": "TASK_STATE_WORKING",
    "cancelling": "TASK_STATE_WORKING",
    "awaiting_approval": "TASK_STATE_INPUT_REQUIRED",
    "awaiting_input": "TASK_STATE_INPUT_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "cancelled": "TASK_STATE_CANCELED",
    "rejected": "TASK_STATE_CANCELED",
    "failed": "TASK_STATE_FAILED",
    "timed_out": "TASK_STATE_FAILED",
    "max_iterations": "TASK_STATE_FAILED",
}
"""A2A's `rejected` is for an agent that refuses a task. A run whose calls a user rejected is `canceled`."""


def status(run_status: str, at: datetime | None = None, message: JsonDict | None = None) -> JsonDict:
    """Return the status of a task."""
    moment = (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds")
    found: JsonDict = {"state": STATES[run_status], "timestamp": moment.replace("+00:00", "Z")}
    return found if message is None else {**found, "message": message}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReceiver:
    """A receiver of the updates of one task."""

    run_id: str
    config_id: str
    """The client's id: another receiver of the task with this id is replaced."""
    url: str
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers that each message to the client contains. Values are secrets, which are not read back."""
