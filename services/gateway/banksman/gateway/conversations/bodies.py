"""The bodies of requests about conversations, and of their replies."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.approvals import ApprovalItem, ApprovedFirst
from banksman.contracts.assistants import ConversationRecord, ConversationSettings, Labels, OnReject
from banksman.contracts.events import RunStatus
from banksman.contracts.frames import ConversationCreate
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token
from banksman.contracts.workspaces import RepositorySource
from banksman.gateway.operation.parameters import RequestBody


class NewConversation(RequestBody):
    """A conversation to create."""

    title: str = Field(default="", max_length=200)
    assistant: Token = "default"
    system_prompt_id: Token | None = None
    model: str | None = Field(default=None, max_length=200)
    settings: ConversationSettings = ConversationSettings()
    source: RepositorySource | None = None
    """A repository from which the workspace starts; fetched when the first call or upload needs it."""

    def frame(self, request_id: str) -> ConversationCreate:
        fields = {name: getattr(self, name) for name in NewConversation.model_fields}
        return ConversationCreate(type="conversation.create", id=request_id, **fields)


class ConversationChange(RequestBody):
    """The changes of a conversation; omitted fields are unchanged."""

    title: str | None = Field(default=None, max_length=200)
    pinned: bool | None = None
    archived: bool | None = None
    labels: Labels | None = None
    """All its labels, each of at most 40 characters without a comma; they replace the earlier ones."""


class ExportedConversation(RequestBody):
    """A conversation as the page exports it: its record, and its events as frames."""

    conversation: JsonObject = Field(default_factory=dict)
    """Its record, of which only the title is read."""
    events: tuple[JsonObject, ...] = Field(min_length=1, max_length=50_000)


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
    on_reject: OnReject = "abort"
    """What a rejection does to the run if it does not state it."""
    first: ApprovedFirst | None = None
    """The first of two approvals, which another user must repeat; null for none; `items` follow it."""


class ConversationApproval(RunApproval):
    """An open approval request of a conversation."""

    run_id: Token


class ActiveRun(Stored):
    """The open run of a conversation."""

    run_id: Token
    status: RunStatus


class ConversationHead(Stored):
    """The head of a conversation's log."""

    head_seq: int
    """Number of the last event; 0 for none."""
    oldest_seq: int
    """Number of the oldest stored event."""
    log_epoch: str
    """Changes when the log was restored from a backup."""


class Conversation(ConversationRecord, ConversationHead):
    """A conversation with the head of its log."""

    active_run: ActiveRun | None
    pending_approvals: tuple[ConversationApproval, ...]


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
    imported: bool = Field(default=False, exclude_if=lambda imported: not imported)
    """Whether an imported file states it; omitted if not."""
    data: JsonObject


class EventPage(ConversationHead):
    """Stored events in order, and the head of the log."""

    items: tuple[EventFrame, ...]
    next: int | None
    """`after_seq` of the next page; null at the end."""
    problem: str | None
    """Why events are missing from the log, and the remedy; null if none are known to be."""
