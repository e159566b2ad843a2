"""Requests and replies about assistants, over HTTP and over NATS."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.assistants import (
    ONE_APPROVER,
    ApprovalRule,
    ApprovalTerms,
    Assistant,
    FallbackModels,
    Limits,
    ModelOptions,
    ToolSettings,
)
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Text, Timestamp, Token, Wire
from banksman.contracts.workspaces import SubmittedFiles


class AssistantBody(Wire):
    """An assistant that a client submits. Tools are off by default."""

    name: str = Field(default="", max_length=200)
    service: str = Field(default="banksman", max_length=64)
    model: str | None = Field(default=None, max_length=200)
    fallback_models: FallbackModels = ()
    system_prompt_id: Token | None = None
    system_prompt: Text | None = None
    options: ModelOptions = ModelOptions()
    tools: ToolSettings = ToolSettings()
    limits: Limits = Limits()
    approval_policy: tuple[ApprovalRule, ...] = ()
    approvals: ApprovalTerms = ONE_APPROVER
    variables: JsonObject = Field(default_factory=dict)
    files: SubmittedFiles = ()
    """Files that each new workspace of its conversations starts with."""

    def assistant(self, assistant_id: str) -> Assistant:
        """Return the assistant to store."""
        return Assistant(
            id=assistant_id, **{name: getattr(self, name) for name in AssistantBody.model_fields}
        )


class NewAssistant(AssistantBody):
    """An assistant to create."""

    id: Token | None = None
    """None lets the gateway generate one."""


class AssistantUpdate(AssistantBody):
    """An assistant that replaces an existing one."""

    revision: int | None = None
    """The revision to replace; None replaces the current one."""


class AssistantList(Wire):
    """All assistants of a tenant, sorted by id, without the contents of their files."""

    items: tuple[Assistant, ...]
    next: None = None
    """Always null: the list has one page."""


class AssistantRevision(Stored):
    """One revision of an assistant."""

    revision: int
    at: Timestamp | None
    """Time of storage; None if unknown."""
    by: str
    """The user who stored it; empty if unknown."""
    current: bool
    """Whether runs use this revision."""


class AssistantRevisions(Stored):
    """The stored revisions of an assistant, newest first."""

    items: tuple[AssistantRevision, ...]


class ChangedField(Stored):
    """A field that differs between two revisions."""

    field: str
    before: JsonValue
    after: JsonValue


class AssistantChanges(Stored):
    """The differences between two revisions of an assistant."""

    since: int
    revision: int
    items: tuple[ChangedField, ...]
