"""The actions that the audit trail of a tenant records, and the requests that perform them.

Changes of conversations, their runs and files, and decisions are recorded in the conversations' logs instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AuditedAction:
    """An action and the requests that perform it."""

    name: str
    """`key.created`."""
    http: str
    """Method and path."""
    nats: str = ""
    """The tokens of the subject after the tenant; empty if the NATS API has no such request."""
    details: tuple[str, ...] = ()
    """Fields of the reply that describe the change. They must not contain secrets."""


ACTIONS: Final = (
    AuditedAction("workflow.created", "POST /workflows", "workflow create", ("title",)),
    AuditedAction("workflow.changed", "PUT /workflows/{name}", "workflow update", ("title",)),
    AuditedAction("workflow.deleted", "DELETE /workflows/{name}", "workflow delete"),
    AuditedAction(
        "conversation.deleted", "DELETE /context/conversations/{conversation_id}", "conversation delete"
    ),
    AuditedAction("conversation.imported", "POST /context/conversations/import", "conversation import"),
)
BY_HTTP: Final = {action.http: action for action in ACTIONS}
