"""Events, the immutable facts of a conversation, and commits, the appends that carry them.

A commit is one JetStream message on the conversation's subject. Its events are numbered `seq` 1..n without
gaps over the whole conversation. Their bodies are what clients see as the `data` of an event frame, but for
the fields that `frames.py` leaves out.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field

from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.messages import Content, ToolProtocol, Usage
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Text, Timestamp, Token

RunStatus = Literal["queued", "running", "awaiting_approval", "awaiting_input", "cancelling"]
"""The statuses of an open run."""

Outcome = Literal["completed", "failed", "cancelled", "timed_out", "rejected", "max_iterations"]
"""
completed       the model, or a terminating call, gave the answer
failed          an error ended it; `error` says which
cancelled       a client asked for it
timed_out       `run_timeout_s` was reached
rejected        a person rejected a call
max_iterations  the iteration limit was reached
"""

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]
"""Why the model stopped, both vendors' words mapped."""


class RunError(Stored):
    """Why a run did not complete."""

    code: ErrorCode
    message: str


class RunQueued(Stored):
    """A run waits behind another of its conversation."""

    type: Literal["run.queued"] = "run.queued"
    position: int
    """1 for the next to start."""
    message_id: Token
    message: Content
    settings: RunSettings


class RunStarted(Stored):
    """A run has an owner for the first time; the commit that holds it is the claim."""

    type: Literal["run.started"] = "run.started"
    message_id: Token
    message: Content
    settings: RunSettings


class IterationStarted(Stored):
    """The model is asked for the n-th time with results."""

    type: Literal["iteration.started"] = "iteration.started"
    n: int
    max: int


class MessageCompleted(Stored):
    """A whole message: the model's reply, or a user's that steers an open run."""

    type: Literal["message.completed"] = "message.completed"
    message_id: Token
    role: Literal["user", "assistant"]
    content: Content | None
    finish_reason: FinishReason | None = None
    model: str = ""
    """`provider:model` that wrote it; empty for a user's message."""
    protocol: ToolProtocol = "native"
    provider: str = ""
    provider_state: JsonObject | None = None
    usage: Usage = Usage()


class ProtocolRetry(Stored):
    """The model wrote a call that cannot be read and is asked again."""

    type: Literal["protocol.retry"] = "protocol.retry"
    attempt: int
    max: int
    error: str
    """The rule that was broken and its position."""
    message_id: Token
    reply: Text
    """What the model wrote."""
    correction: Text
    """What it was told."""
    model: str = ""
    """`provider:model` that wrote it."""
    provider: str = ""
    provider_state: JsonObject | None = None
    usage: Usage = Usage()


class ToolCallRequested(Stored):
    """The model asked for a call."""

    type: Literal["tool_call.requested"] = "tool_call.requested"
    call: ToolCall
    arguments_error: str | None = None
    """Why the model's arguments could not be read; None when they could."""


class Preview(Stored):
    """What a person is shown of a call beside its exact arguments."""

    kind: Literal["command", "diff", "url", "text"]
    command: str | None = None
    url: str | None = None
    path: str | None = None
    old: str | None = None
    new: str | None = None
    text: str | None = None


class ApprovalItem(Stored):
    """One call of an approval."""

    tool_call_id: Token
    name: str
    arguments: JsonObject
    digest: str
    editable: bool = True
    preview: Preview
    network: NetworkPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """Where the call may connect to; see `ToolCall.network`."""


class ApprovalRequested(Stored):
    """Calls of one iteration wait for a person."""

    type: Literal["approval.requested"] = "approval.requested"
    approval_id: Token
    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]


class ItemDecision(Stored):
    """What was decided of one call."""

    tool_call_id: Token
    decision: Literal["approve", "reject"]
    arguments: JsonObject | None = None
    """Edited arguments; None for the requested ones."""
    reason: str | None = Field(default=None, max_length=2000)


ApprovalOutcome = Literal["approved", "rejected", "mixed", "expired", "cancelled", "superseded"]
"""
approved    every call may run
rejected    none may
mixed       some may
expired     nobody answered in time
cancelled   the run was cancelled first
superseded  the user went on with another message
"""

Remember = Literal["run", "conversation"]


class ApprovalResolved(Stored):
    """The one decision, as the stream of approvals holds it."""

    type: Literal["approval.resolved"] = "approval.resolved"
    approval_id: Token
    outcome: ApprovalOutcome
    by: str
    """The approver's identity, or `system`."""
    decisions: tuple[ItemDecision, ...] = ()
    remember: Remember | None = None


class ToolCallCompleted(Stored):
    """The one result of a call."""

    type: Literal["tool_call.completed"] = "tool_call.completed"
    result: ToolResult


class WorkspaceChanged(Stored):
    """Files that a call changed."""

    type: Literal["workspace.changed"] = "workspace.changed"
    paths: tuple[JsonObject, ...]


class WorkspaceRestored(Stored):
    """The workspace was rebuilt on another runner, and changes may be missing."""

    type: Literal["workspace.restored"] = "workspace.restored"
    snapshot_ts: Timestamp | None
    """When the copy was made; None when the workspace begins empty."""
    lost_calls: tuple[str, ...]
    """Ids of the calls whose changes may be missing."""
    term: int = 0
    """The term of the workspace that began with the loss: each log tells it once."""
    reason: str | None = None
    """Why an existing copy was not restored."""


class CancelRequested(Stored):
    """Somebody wants the run to end."""

    type: Literal["run.cancel_requested"] = "run.cancel_requested"
    reason: str | None = None
    by: str


class HistoryCompacted(Stored):
    """The older part of the history gave way to a summary, as it neared what the model can read.

    Nothing leaves the log: this only says what the model is shown from here on.
    """

    type: Literal["history.compacted"] = "history.compacted"
    message_id: Token
    """Of the message that stands in for the older part."""
    how: Literal["summarised", "dropped"]
    """
    summarised  a model told it in its own words
    dropped     no summary could be had; the older part is left out
    """
    summary: Text
    """What was said; with `dropped`, the summary of before, if there was one."""
    kept_from: int = Field(ge=1)
    """Index in the history of the first message that is kept; the ones before it give way."""
    tokens_before: int
    """Tokens of the next request as it would have been, estimated."""
    tokens_after: int
    """The same estimate with the summary."""
    model: str = ""
    """Who wrote the summary, `provider:model`; empty for nobody."""
    usage: Usage = Usage()
    """What writing it consumed, part of the run's usage."""


class TrackedCall(Stored):
    """One execution in the outcome of a run."""

    tool: str
    params: JsonObject
    result: JsonObject
    iteration: int


class RunFinished(Stored):
    """The one terminal event of a run."""

    type: Literal["run.finished"] = "run.finished"
    status: Outcome
    content: str
    service: str
    model: str
    """The model that answered last; the first choice when none did."""
    iterations: int
    tool_calls: tuple[TrackedCall, ...] = ()
    """Every call in the order of the results; of very many, texts are cut and the oldest left out."""
    max_iterations_reached: bool = False
    usage: Usage = Usage()
    error: RunError | None = None


class WorkflowProgress(Stored):
    """How far a workflow is."""

    type: Literal["workflow.progress"] = "workflow.progress"
    step: int
    total: int
    message: str


class WorkflowLinked(Stored):
    """A workflow was started in this conversation; its events are in a log of its own."""

    type: Literal["workflow.linked"] = "workflow.linked"
    workflow: str
    workflow_run_id: Token
    workflow_conversation_id: Token


class InputRequested(Stored):
    """A workflow asks the user for a value."""

    type: Literal["input.requested"] = "input.requested"
    request_id: Token
    message: str
    schema_: JsonObject = Field(alias="schema")


class InputResolved(Stored):
    """The value that was given."""

    type: Literal["input.resolved"] = "input.resolved"
    request_id: Token
    value: JsonValue
    by: str


class ConversationUpdated(Stored):
    """Title or status changed; status `deleted` is the tombstone."""

    type: Literal["conversation.updated"] = "conversation.updated"
    title: str | None = None
    status: str | None = None
    request_id: Token | None = None
    """Of the renaming that this records; clients are not told of it."""


KnownBody = Annotated[
    RunQueued
    | RunStarted
    | IterationStarted
    | MessageCompleted
    | ProtocolRetry
    | ToolCallRequested
    | ApprovalRequested
    | ApprovalResolved
    | ToolCallCompleted
    | WorkspaceChanged
    | WorkspaceRestored
    | CancelRequested
    | HistoryCompacted
    | RunFinished
    | WorkflowProgress
    | WorkflowLinked
    | InputRequested
    | InputResolved
    | ConversationUpdated,
    Field(discriminator="type"),
]
"""The bodies that this version knows."""

KNOWN_TYPES: frozenset[str] = frozenset(
    body.model_fields["type"].default for body in get_args(get_args(KnownBody)[0])
)


def _newer_type(type: str) -> str:
    if type in KNOWN_TYPES:
        raise ValueError(f"{type} is known, and its body is wrong")
    return type


class UnknownEvent(Stored):
    """A fact of a type that this version does not know: a newer one wrote it, while a system is upgraded.

    It has its number, is passed on to clients as it is, and changes nothing else. So a new type may only
    tell of something; what older processes must not pass over raises `v`, which they refuse by name.
    """

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, AfterValidator(_newer_type)]


EventBody = Annotated[KnownBody | UnknownEvent, Field(union_mode="left_to_right")]
"""What an event says. Nothing is taken for unknown whose type is known."""


class Event(Stored):
    """One fact of a conversation."""

    v: Literal[1] = 1
    seq: int = Field(ge=1)
    """Its number in the conversation, 1..n without gaps."""
    ts: Timestamp
    run_id: Token | None = None
    iteration: int | None = None
    data: EventBody


class Owner(Stored):
    """Who drives the open run."""

    agent: Token
    owner_epoch: int = Field(ge=1)
    """Raised by one with each claim; whoever meets a higher one stops."""
    work_seq: int = Field(ge=0)
    """Stream sequence of the work message it holds. That message's redelivery is a takeover."""


class Snapshot(Stored):
    """The fold of a log up to the commit before, so that a reader need not begin at the beginning."""

    form: Token
    """Names the form of `state`; a reader of another form folds the whole log."""
    state: str | None = None
    """The folded state, compressed; None when it is kept as an object."""
    ref: str | None = None
    """Name of the object in store `snapshots` that holds it; its content may be newer than this commit."""


class Commit(Stored):
    """One append to a log, written as one JetStream message."""

    v: Literal[1] = 1
    ts: Timestamp
    id: Token
    """Unique; after a lost ack the last stored commit's id tells whether this one was stored."""
    log_epoch: Token
    """Changes when a log was restored from a backup."""
    first_seq: int = Field(ge=1)
    """Number of its first event; the next free one when it has none."""
    owner: Owner | None
    """Who owns the open run from here on; None when nobody does."""
    owner_epoch: int = Field(default=0, ge=0)
    """The highest claim so far, this commit's included. It never falls, also while nobody owns the run."""
    claim: bool = False
    """True when this commit raised `owner_epoch`."""
    events: tuple[Event, ...] = ()
    snapshot: Snapshot | None = None
    """Set on a commit that only holds a snapshot: it has no events, and changes neither owner nor claims."""

    @property
    def last_seq(self) -> int:
        """Number of its last event; `first_seq - 1` when it has none."""
        return self.first_seq + len(self.events) - 1
