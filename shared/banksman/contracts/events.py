"""Events, the immutable facts of a conversation, and commits, the appends that carry them.

A commit is one JetStream message on the conversation's subject. Its events are numbered `seq` 1..n without
gaps over the whole conversation. Clients receive their bodies as the `data` of event frames, without the
fields that `frames.py` omits.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field

from banksman.contracts import approvals
from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import ErrorCode
from banksman.contracts.messages import UNKNOWN, Content, Provenance, ToolProtocol, Usage
from banksman.contracts.tools import PathChange, ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, Stored, Text, Timestamp, Token
from banksman.contracts.workflows import WorkflowLinked, WorkflowOutput, WorkflowProgress
from banksman.contracts.workspaces import WorkspaceRestored

RunStatus = Literal["queued", "running", "awaiting_approval", "awaiting_input", "cancelling"]
"""The statuses of an open run."""

Outcome = Literal["completed", "failed", "cancelled", "timed_out", "rejected", "max_iterations"]
"""
completed       the model or a terminating call returned the final content
failed          an error ended it; `error` names the error
cancelled       a client cancelled it
timed_out       `run_timeout_s` was reached
rejected        a user rejected a call
max_iterations  the iteration limit was reached
"""

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "unknown"]
"""Why the model stopped. Adapters map the vendors' values to these."""


class RunError(Stored):
    """Why a run did not complete."""

    code: ErrorCode
    message: str


class RunQueued(Stored):
    """A run waits for another run of its conversation."""

    type: Literal["run.queued"] = "run.queued"
    position: int
    """Position in the queue; 1 starts next."""
    message_id: Token
    message: Content
    settings: RunSettings
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)


class RunStarted(Stored):
    """A run has its first owner. The commit with this event is the claim."""

    type: Literal["run.started"] = "run.started"
    message_id: Token
    message: Content
    settings: RunSettings
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)


class IterationStarted(Stored):
    """Iteration `n` of at most `max` begins: a model request after the results of the last iteration."""

    type: Literal["iteration.started"] = "iteration.started"
    n: int
    max: int


class MessageCompleted(Stored):
    """A complete message: a reply of the model, or a user's message that steers an open run."""

    type: Literal["message.completed"] = "message.completed"
    message_id: Token
    role: Literal["user", "assistant"]
    content: Content | None
    finish_reason: FinishReason | None = None
    model: str = ""
    """The `provider:model` that wrote it; empty for a user's message."""
    protocol: ToolProtocol = "native"
    provider: str = ""
    provider_state: JsonObject | None = None
    usage: Usage = Usage()
    """Usage of the model request; an estimate if `partial`."""
    partial: bool = Field(default=False, exclude_if=lambda partial: not partial)
    """True if the run ended while the model wrote: `content` is the text that was streamed until then."""
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)
    """Of a message that steers; a reply of the model has none."""


class ReasoningCompleted(Stored):
    """What a model thought before its reply, for people to read: no model receives it."""

    type: Literal["reasoning.completed"] = "reasoning.completed"
    message_id: Token
    """The message that follows it."""
    text: Text
    """Its beginning, at most 20,000 characters."""
    characters: int
    """Length of the whole reasoning."""
    duration_s: float
    """Seconds from its first piece to its last."""


class ProtocolRetry(Stored):
    """The model wrote a call that cannot be parsed, and receives a correction."""

    type: Literal["protocol.retry"] = "protocol.retry"
    attempt: int
    max: int
    error: str
    """The rule that the reply violates, and the position."""
    message_id: Token
    reply: Text
    """The model's reply."""
    correction: Text
    """The correction that the next model request contains."""
    model: str = ""
    """`provider:model` that wrote it."""
    provider: str = ""
    provider_state: JsonObject | None = None
    usage: Usage = Usage()


class ModelNotice(Stored):
    """What an agent changed in a model request or in a reply. The model does not receive it."""

    type: Literal["model.notice"] = "model.notice"
    kind: Token
    """
    tool_left_out  a tool was not offered to the model
    repaired       a call was read although its text breaks the format
    prompt_cut     the model's server appears to have cut the prompt
    nudged         an empty reply was requested again

    Newer versions may add kinds.
    """
    text: Text
    """One sentence for the user, at most 500 characters."""


class ToolCallRequested(Stored):
    """The model requested a tool call."""

    type: Literal["tool_call.requested"] = "tool_call.requested"
    call: ToolCall
    arguments_error: str | None = None
    """Why the call is not executed: its arguments could not be parsed, or `over_limit`; None otherwise."""
    over_limit: bool = Field(default=False, exclude_if=lambda over: not over)
    """True for a call beyond the limit of calls per reply. It is not executed, and stored without its
    arguments."""


class ToolCallCompleted(Stored):
    """The one result of a call."""

    type: Literal["tool_call.completed"] = "tool_call.completed"
    result: ToolResult


class WorkspaceChanged(Stored):
    """A call changed files of the workspace."""

    type: Literal["workspace.changed"] = "workspace.changed"
    paths: tuple[PathChange, ...]
    """Of a command, the first 200: those with the fewest directories above them. All files below a directory
    `.git` count as one."""
    more: int = Field(default=0, exclude_if=lambda more: more == 0)
    """The number of further changed files."""


class CancelRequested(Stored):
    """A client requested that the run ends."""

    type: Literal["run.cancel_requested"] = "run.cancel_requested"
    reason: str | None = None
    by: str


class HistoryCompacted(Stored):
    """A summary replaces the older part of the history, which neared the model's context window.

    The log keeps all events. Only later model requests contain the summary instead.
    """

    type: Literal["history.compacted"] = "history.compacted"
    message_id: Token
    """Id of the message that replaces the older part."""
    how: Literal["summarised", "dropped"]
    """
    summarised  a model wrote a summary
    dropped     no model could write a summary; the older part is omitted
    """
    summary: Text
    """The summary; with `dropped`, the previous summary if there is one."""
    kept_from: int = Field(ge=1)
    """Index in the history of the first message that stays. The summary replaces the messages before it."""
    tokens_before: int
    """Estimated tokens of the next request without the summary."""
    tokens_after: int
    """Estimated tokens of the next request with the summary."""
    model: str = ""
    """`provider:model` that wrote the summary; empty with `dropped`."""
    usage: Usage = Usage()
    """Usage of the request for the summary, part of the run's usage."""


class HistoryCut(Stored):
    """The log lost events, and an operator cut it before the gap and set the later events aside."""

    type: Literal["history.cut"] = "history.cut"
    first_missing: int
    """Number of the first lost event. New events are numbered from it on, in another log epoch."""
    set_aside: int
    """Number of events after the gap, which the operator has in a file."""


class TrackedCall(Stored):
    """One execution in the outcome of a run."""

    tool: str
    params: JsonObject
    result: JsonObject
    iteration: int
    """The iteration that requested it, counted from 0."""


class RunFinished(Stored):
    """The one terminal event of a run."""

    type: Literal["run.finished"] = "run.finished"
    status: Outcome
    content: str
    structured_output: JsonObject | None = Field(default=None, exclude_if=lambda output: output is None)
    """The content as an object that fits the `response_schema` of the run; None without such a schema."""
    service: str
    model: str
    """The model that replied last; if none did, the run's first model."""
    iterations: int
    tool_calls: tuple[TrackedCall, ...] = ()
    """Calls in the order of their results. If they exceed the size limit, texts are cut and the oldest calls
    omitted."""
    tool_calls_ref: str | None = Field(default=None, exclude_if=lambda ref: ref is None)
    """HTTP path of all complete calls in pages, if `tool_calls` lacks some or has cut texts."""
    max_iterations_reached: bool = False
    usage: Usage = Usage()
    error: RunError | None = None


class ConversationUpdated(Stored):
    """The title or status changed. The status `deleted` is the tombstone."""

    type: Literal["conversation.updated"] = "conversation.updated"
    title: str | None = None
    status: str | None = None
    request_id: Token | None = None
    """Id of the rename request. Frames for clients omit it."""


KnownBody = Annotated[
    RunQueued
    | RunStarted
    | IterationStarted
    | MessageCompleted
    | ProtocolRetry
    | ModelNotice
    | ReasoningCompleted
    | ToolCallRequested
    | approvals.ApprovalRequested
    | approvals.ApprovalResolved
    | approvals.ApprovalEscalated
    | approvals.ApprovalForgotten
    | ToolCallCompleted
    | WorkspaceChanged
    | WorkspaceRestored
    | CancelRequested
    | HistoryCompacted
    | HistoryCut
    | RunFinished
    | WorkflowProgress
    | WorkflowOutput
    | WorkflowLinked
    | approvals.InputRequested
    | approvals.InputResolved
    | ConversationUpdated,
    Field(discriminator="type"),
]
"""The bodies that this version knows."""

KNOWN_TYPES: frozenset[str] = frozenset(
    body.model_fields["type"].default for body in get_args(get_args(KnownBody)[0])
)


def _newer_type(type: str) -> str:
    if type in KNOWN_TYPES:
        raise ValueError(f"{type} is a known type with an invalid body")
    return type


class UnknownEvent(Stored):
    """An event of a type that a newer version wrote during an upgrade.

    It has a number, clients receive it unchanged, and the fold ignores it, so a new type must be purely
    informative. A change that older processes must not ignore raises `v`, which they refuse.
    """

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, AfterValidator(_newer_type)]


EventBody = Annotated[KnownBody | UnknownEvent, Field(union_mode="left_to_right")]
"""The body of an event. A known type with an invalid body is an error, never an `UnknownEvent`."""


class Event(Stored):
    """One fact of a conversation."""

    v: Literal[1] = 1
    seq: int = Field(ge=1)
    """Number in the conversation, 1..n without gaps."""
    ts: Timestamp
    run_id: Token | None = None
    iteration: int | None = None
    imported: bool = Field(default=False, exclude_if=lambda imported: not imported)
    """True if a file states it: its decisions apply to no other call, and its usage does not count."""
    data: EventBody


class Owner(Stored):
    """The agent that drives the open run."""

    agent: Token
    owner_epoch: int = Field(ge=1)
    """Each claim raises it by one. An owner that finds a higher one stops."""
    work_seq: int = Field(ge=0)
    """Stream sequence of the work message that it holds. A redelivery of this message is a takeover."""


class Snapshot(Stored):
    """The folded state up to the previous commit, so that readers need not fold the whole log."""

    form: Token
    """Version of the format of `state`. A reader of another version folds the whole log."""
    state: str | None = None
    """The folded state, compressed; None if it is stored as an object."""
    ref: str | None = None
    """Name of its object in the store `snapshots`, whose content may be newer than this commit."""


class Archive(Stored):
    """The earlier commits of a log, which were moved to the object store `archive`."""

    parts: tuple[Token, ...]
    """Names of the objects, in the order of their commits."""
    commits: int = Field(ge=1)
    """Number of the commits in all parts."""


class Commit(Stored):
    """One append to a log, written as one JetStream message."""

    v: Literal[1] = 1
    ts: Timestamp
    id: Token
    """Unique id. After a lost ack, the id of the last stored commit shows whether this commit was stored."""
    log_epoch: Token
    """Changes when the log is restored from a backup."""
    first_seq: int = Field(ge=1)
    """Number of its first event; the next free number if it has no events."""
    owner: Owner | None
    """The owner of the open run after this commit; None if it has no owner."""
    owner_epoch: int = Field(default=0, ge=0)
    """The highest claim so far, including this commit. It never decreases, even while a run has no owner."""
    claim: bool = False
    """True if this commit raises `owner_epoch`."""
    after_reconnect: bool = Field(default=False, exclude_if=lambda after: not after)
    """True for a claim shortly after its process reconnected to the broker. A restarted broker redelivers the
    work of live owners, so such a claim is no evidence that the previous owner died."""
    events: tuple[Event, ...] = ()
    snapshot: Snapshot | None = None
    """Set on a commit that only stores a snapshot. It has no events and changes neither owner nor claims."""
    archive: Archive | None = Field(default=None, exclude_if=lambda archive: archive is None)
    """Set on a commit that only names the archive of all commits before it, which may no longer be stored."""

    @property
    def last_seq(self) -> int:
        """Number of its last event; `first_seq - 1` if it has no events."""
        return self.first_seq + len(self.events) - 1
