"""Messages to agents: work, signals, approval requests and replies, and dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.administration import AuditInterface
from banksman.contracts.approvals import ApprovalItem, ApprovalOutcome, InputRequested, ItemDecision, Remember
from banksman.contracts.assistants import ApprovalTerms, Branch, OnReject, RunSettings
from banksman.contracts.events import Event, Outcome
from banksman.contracts.messages import UNKNOWN, Content, Provenance
from banksman.contracts.wire import JsonValue, Stored, Text, Timestamp, Token


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
    first: bool = Field(default=False, exclude_if=lambda first: not first)
    """Whether its conversation was just created, so its log is most likely empty."""
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)


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
    """The workflow of the run, which the workflows service drives. None for a run that agents drive."""


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
    request_id: Token
    """Identifies a repeated request, even after another rename."""


class EscalateApproval(Stored):
    """Escalate an approval request that a user set aside."""

    v: Literal[1] = 1
    type: Literal["escalate"] = "escalate"
    tenant: Token
    conversation_id: Token
    approval_id: Token
    by: str


class SetAside(Stored):
    """A user set an approval request aside. This is not a decision."""

    v: Literal[1] = 1
    by: str
    at: Timestamp


class LinkUse(Stored):
    """The decision that used a single-use link."""

    v: Literal[1] = 1
    by: str
    answer_id: str
    """Id of the client request; a repeat of the request is the same use."""
    at: Timestamp


class ForgetDecision(Stored):
    """Withdraw a remembered decision: it applies to no further call."""

    v: Literal[1] = 1
    type: Literal["forget"] = "forget"
    tenant: Token
    conversation_id: Token
    approval_id: Token
    by: str


class DeleteConversation(Stored):
    """Delete a conversation: end its open run and commit a tombstone."""

    v: Literal[1] = 1
    type: Literal["delete"] = "delete"
    tenant: Token
    conversation_id: Token
    by: str


class ArchiveConversation(Stored):
    """Move the commits of an unused conversation to the archive."""

    v: Literal[1] = 1
    type: Literal["archive"] = "archive"
    tenant: Token
    conversation_id: Token
    unused_since: Timestamp
    """A conversation with a later commit stays."""


class ImportedMessage(Stored):
    """A message of an imported conversation."""

    message_id: Token
    content: Text


class ImportedRun(Stored):
    """A run of an imported conversation: a user's message and the replies to it. It has no calls."""

    run_id: Token
    message: ImportedMessage
    replies: tuple[ImportedMessage, ...] = ()
    status: Outcome
    model: str = Field(max_length=200)
    branch: Branch | None = None


class ImportConversation(Stored):
    """Write the messages of an exported conversation into the log of a new one: as version 1.0 imports."""

    v: Literal[1] = 1
    type: Literal["import"] = "import"
    tenant: Token
    conversation_id: Token
    settings: RunSettings
    """The settings of the runs; they are never driven."""
    runs: tuple[ImportedRun, ...]


class ImportEvents(Stored):
    """Write a part of an imported conversation into its log."""

    v: Literal[1] = 1
    type: Literal["import_events"] = "import_events"
    tenant: Token
    conversation_id: Token
    events: tuple[Event, ...]
    """Numbered 1..n over all parts. The log may have other events too, and has numbers of its own."""


RunSignal = Annotated[
    CancelRun
    | SteerRun
    | RenameConversation
    | DeleteConversation
    | ArchiveConversation
    | ImportConversation
    | ImportEvents
    | ForgetDecision
    | EscalateApproval,
    Field(discriminator="type"),
]


class _OfApproval(Stored):
    """The fields that identify an approval request."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    run_id: Token
    approval_id: Token

    @property
    def target(self) -> tuple[str, str, str, str]:
        """The ids that a request and its replies have in common."""
        return self.tenant, self.conversation_id, self.run_id, self.approval_id


class ApprovalRequest(_OfApproval):
    """The stored approval request. The stream stores its reply under `approval.reply`."""

    expires_at: Timestamp
    items: tuple[ApprovalItem, ...]
    input: InputRequested | None = Field(default=None, exclude_if=lambda request: request is None)
    """The value that a workflow requests. Such a request has no items; `approval_id` is the input's id."""
    terms: ApprovalTerms | None = Field(default=None, exclude_if=lambda terms: terms is None)
    """The terms of the decision; None for one approver and no escalation."""
    escalates_at: Timestamp | None = Field(default=None, exclude_if=lambda moment: moment is None)
    """Time of escalation if no decision arrives before; None for no escalation."""
    on_reject: OnReject = Field(default="abort", exclude_if=lambda choice: choice == "abort")
    """What a rejection does to the run if it does not state it."""
    commit: int = Field(default=0, exclude_if=lambda commit: commit == 0)
    """Stream sequence of the log's last commit when it was stored: that of the request, unless an owner was
    killed in between."""

    @property
    def approvers(self) -> int:
        """Users who must approve."""
        return 1 if self.terms is None else self.terms.approvers


class FirstApproval(_OfApproval):
    """The first of two approvals of a request. It decides nothing; the second user's reply contains it."""

    by: str
    decisions: tuple[ItemDecision, ...]
    remember: Remember | None = None
    digests: tuple[str, ...]
    decided_at: Timestamp
    answer_id: str = ""
    """Id of the client request, by which a repeat recognises its own approval."""
    signature: str = ""
    """Hex HMAC-SHA256 of the gateway over all other fields except `answer_id`."""


class ApprovalReply(_OfApproval):
    """The stored reply to an approval request. The first stored reply is the decision."""

    outcome: ApprovalOutcome
    by: str
    decisions: tuple[ItemDecision, ...] = ()
    remember: Remember | None = None
    digests: tuple[str, ...] = ()
    """Digests of the calls that the approver saw, in the order of the request; for a requested value, the
    digests of the request and of the value."""
    value: JsonValue = Field(default=None, exclude_if=lambda value: value is None)
    """The value that a workflow requested. The signature covers it through `digests`."""
    decided_at: Timestamp
    answer_id: str = ""
    """Id of the client request that decided. A repeated request recognises its own reply by it. It
    does not affect the decision."""
    first: FirstApproval | None = Field(default=None, exclude_if=lambda first: first is None)
    """The approval of the first user, if two users must approve. It has its own signature."""
    interface: AuditInterface = Field(default="system", exclude_if=lambda interface: interface == "system")
    """Where it was decided, for the audit trail."""
    signature: str = ""
    """Hex HMAC-SHA256 of the gateway over all fields except `answer_id`, `first` and `interface`; empty in
    replies of agents."""


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
