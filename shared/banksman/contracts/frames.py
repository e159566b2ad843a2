"""Websocket frames: requests of clients, and replies of the server. Event frames are in `event_frames`.

The NATS API (`api.{tenant}.>`) uses the same bodies, so both interfaces have one contract.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from banksman.contracts.approvals import ItemDecision, Remember
from banksman.contracts.assistants import Branch, ConversationSettings, OnReject, RunOverrides
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.messages import PERSON, Content, Provenance
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Token, Wire
from banksman.contracts.workspaces import RepositorySource

SUBPROTOCOL = "banksman.v1"
REQUEST_ID: Final = "Banksman-Request-Id"
"""Header with the idempotency key of a request; if it is missing, the body's `id` is the key."""
SCHEMA_VERSION: Final = "Banksman-Schema-Version"
"""Header with the version of the frames (`wire.WIRE_VERSION`)."""
HEARTBEAT_S = 20
"""Seconds without a frame after which a client sends `ping`. It reconnects after twice that time."""

Detail = Literal["final", "steps", "full"]
"""
final  messages, approval requests and outcomes
steps  also iterations, tool calls and their results
full   also output of running calls, and reasoning
"""

DETAILS: tuple[Detail, ...] = ("final", "steps", "full")

FrameId = Annotated[str, Field(min_length=1, max_length=128)]


class ClientInfo(Wire):
    """The client's name and version, for logs."""

    name: str = Field(default="", max_length=100)
    version: str = Field(default="", max_length=100)


class Resume(Wire):
    """The position from which a client resumes a conversation."""

    conversation_id: Token
    after_seq: int = Field(ge=0)
    log_epoch: str | None = Field(default=None, max_length=64)
    detail: Detail = "final"


class Envelope(Wire):
    """A frame without a required conversation."""

    conversation_id: Token | None = None
    """The conversation of the ids in the frame; ids of another one are refused. None skips the check."""


class Hello(Envelope):
    """The first frame of a connection."""

    type: Literal["hello"]
    id: FrameId | None = None
    token: str | None = Field(default=None, max_length=4096, repr=False)
    client: ClientInfo = ClientInfo()
    resume: tuple[Resume, ...] = Field(default=(), max_length=200)


class AuthRefresh(Envelope):
    """Replace the token of an open connection."""

    type: Literal["auth.refresh"]
    id: FrameId
    token: str = Field(max_length=4096, repr=False)


class Ping(Envelope):
    """Keep-alive; the reply is `pong`."""

    type: Literal["ping"]
    id: FrameId | None = None
    t: JsonValue = None


class ConversationCreate(Envelope):
    """Create a conversation and subscribe the connection to it."""

    type: Literal["conversation.create"]
    id: FrameId
    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    system_prompt_id: Token | None = None
    model: str | None = Field(default=None, max_length=200)
    settings: ConversationSettings = ConversationSettings()
    source: RepositorySource | None = None
    """A repository from which the workspace starts; fetched when the first call or upload needs it."""
    detail: Detail = "final"


class Subscribe(Wire):
    """Subscribe to the events of a conversation; replaces an earlier subscription to it."""

    type: Literal["subscribe"]
    id: FrameId
    conversation_id: Token
    after_seq: int | None = Field(default=None, ge=0)
    """Send the events after this number: 0 sends all, None sends only new ones."""
    log_epoch: str | None = Field(default=None, max_length=64)
    detail: Detail = "final"
    newest_runs: int | None = Field(default=None, ge=1, le=1_000)
    """Leave out the stored events before the newest so many runs; `subscribed` states `after_seq`."""


class Unsubscribe(Wire):
    """End the subscription to a conversation."""

    type: Literal["unsubscribe"]
    id: FrameId
    conversation_id: Token


class ApprovalsSubscribe(Envelope):
    """Receive `approvals.changed` for all conversations of the tenant, until the connection ends."""

    type: Literal["approvals.subscribe"]
    id: FrameId


class ChatSend(Wire):
    """Send a user's message, which starts or steers a run."""

    type: Literal["chat.send"]
    id: FrameId
    conversation_id: Token
    content: Content
    mode: Literal["queue", "steer"] = "queue"
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)
    attachments: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(default=(), max_length=50)
    branch: Branch | None = Field(default=None, exclude_if=lambda branch: branch is None)
    """The message after which the run continues the conversation; None for the newest message."""
    provenance: Provenance = Field(default=PERSON, exclude_if=lambda one: one == PERSON)
    """Who wrote the message. A client states it if a person did not type all of it."""
    traceparent: str | None = Field(default=None, max_length=512, exclude_if=lambda trace: trace is None)
    """W3C trace context in place of the header of the same name, which a malformed value does not replace."""


class RunCancel(Envelope):
    """Cancel a run."""

    type: Literal["run.cancel"]
    id: FrameId
    run_id: Token
    reason: str | None = Field(default=None, max_length=2000)


class ApprovalDecision(Envelope):
    """Decide all calls of an approval request at once."""

    type: Literal["approval.reply"]
    id: FrameId
    approval_id: Token
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
    """The signed part of the link to the request, which allows one decision; None without a link."""


class WorkflowStart(Wire):
    """Start a workflow."""

    type: Literal["workflow.start"]
    id: FrameId
    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None
    provenance: Provenance = Field(default=PERSON, exclude_if=lambda one: one == PERSON)
    """Who wrote the parameters. A client states it if a person did not type all of it."""
    traceparent: str | None = Field(default=None, max_length=512, exclude_if=lambda trace: trace is None)
    """W3C trace context in place of the header of the same name, which a malformed value does not replace."""


class InputReply(Envelope):
    """Provide the value that a workflow, or the server of a tool, requested; or decline to."""

    type: Literal["input.reply"]
    id: FrameId
    request_id: Token
    value: JsonValue = None
    decline: bool = Field(default=False, exclude_if=lambda decline: not decline)
    """True provides no value: a step of a workflow fails, and a server gets `decline`."""


ClientFrame = Annotated[
    Hello
    | AuthRefresh
    | Ping
    | ConversationCreate
    | Subscribe
    | Unsubscribe
    | ApprovalsSubscribe
    | ChatSend
    | RunCancel
    | ApprovalDecision
    | WorkflowStart
    | InputReply,
    Field(discriminator="type"),
]

CLIENT_FRAME: TypeAdapter[ClientFrame] = TypeAdapter(ClientFrame, config=ConfigDict(defer_build=True))


class Replay(Wire):
    """`api.{t}.replay.{c}`: request the events after `after_seq` as websocket frames.

    The reply subject receives one event frame per stored event, in order. With `follow_s` it then receives
    `replay.done`, the frames of the events that are stored next, and deltas. An empty message ends them. If
    the request fails, the reply subject receives one `error` frame.
    """

    after_seq: int = Field(default=0, ge=0)
    log_epoch: str | None = Field(default=None, max_length=64)
    """The epoch of the log that `after_seq` belongs to. If the log has another one, or lacks the position,
    and `follow_s` is above 0, the reply subject receives `resync_required`."""
    detail: Detail = "full"
    follow_s: float = Field(default=0, ge=0, le=60)
    """Seconds for which later events are also sent. Then repeat the request with the last event's number."""


class ConnectionLimits(Stored):
    """The limits of a connection."""

    frame_bytes: int
    inflight: int
    """Maximum number of frames without a reply."""
    rate: int
    """Maximum frames per second; a burst may have twice as many."""


class NotResumed(Stored):
    """A conversation that could not be resumed at the client's position."""

    conversation_id: Token
    reason: str


class Welcome(Stored):
    """The reply to `hello`."""

    type: Literal["welcome"] = "welcome"
    reply_to: str | None = None
    protocol: str = SUBPROTOCOL
    server_version: str
    connection_id: str
    tenant: str
    user: str
    heartbeat_s: int = HEARTBEAT_S
    limits: ConnectionLimits
    notices: tuple[str, ...] = ()
    """Sentences to show to the user, such as a notice that the demo model replies."""
    rights: tuple[str, ...] = ()
    """The rights of the user: `chat`, `approve`, `admin`, `operator`."""
    resumed: tuple[Token, ...] = ()
    not_resumed: tuple[NotResumed, ...] = ()


class Pong(Stored):
    """The reply to `ping`."""

    type: Literal["pong"] = "pong"
    reply_to: str | None = None
    t: JsonValue = None
    ts: str


class Ack(Stored):
    """The request succeeded. The ids depend on the request; the others are None."""

    type: Literal["ack"] = "ack"
    reply_to: str
    conversation_id: str | None = None
    run_id: str | None = None
    message_id: str | None = None
    resolved_by: str | None = None
    already_resolved: bool | None = None
    outcome: str | None = None


class Subscribed(Stored):
    """The subscription is active. The conversation's events follow."""

    type: Literal["subscribed"] = "subscribed"
    reply_to: str | None = None
    conversation_id: str
    head_seq: int
    oldest_seq: int
    log_epoch: str
    after_seq: int | None = Field(default=None, exclude_if=lambda seq: seq is None)
    """With `newest_runs`, the number of the event before the replay; omitted otherwise.

    No run of the replay has an event before it."""
    active_run: JsonObject | None = None
    pending_approvals: tuple[JsonObject, ...] = ()
    pending_inputs: tuple[JsonObject, ...] = ()
    """Open requests of workflows for a value: the data of their `input.requested`, and `run_id`."""


class ReplayDone(Stored):
    """All stored events were sent. The following events are live."""

    type: Literal["replay.done"] = "replay.done"
    conversation_id: str
    seq: int


class ResyncRequired(Stored):
    """The client's position is invalid. Read the conversation from its start and subscribe again."""

    type: Literal["resync_required"] = "resync_required"
    reply_to: str | None = None
    conversation_id: str
    oldest_seq: int
    reason: str


class ApprovalsChanged(Stored):
    """An approval request was opened, decided, or closed by its run; read the list of open requests again.

    It may be sent without a change, and one frame may stand for several changes.
    """

    type: Literal["approvals.changed"] = "approvals.changed"


class ErrorFrame(Stored):
    """A request failed; the connection stays open."""

    type: Literal["error"] = "error"
    reply_to: str | None = None
    code: ErrorCode
    message: str
    retryable: bool = False
    retry_after_s: float | None = None
    details: JsonObject | None = None


class Draining(Stored):
    """The server shuts down; reconnect after `reconnect_after_s` seconds."""

    type: Literal["server.draining"] = "server.draining"
    reconnect_after_s: float


ServerFrame = (
    Welcome | Pong | Ack | Subscribed | ReplayDone | ResyncRequired | ApprovalsChanged | ErrorFrame | Draining
)


def error_frame(error: BanksmanError, reply_to: str | None = None) -> ErrorFrame:
    """Return the `error` frame for an exception."""
    return ErrorFrame(
        reply_to=reply_to,
        code=error.code,
        message=error.public,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
        details=error.details,
    )
