"""The actions that the audit trail of a tenant records, and the requests that perform them.

Changes of conversations, their runs and files, and decisions are recorded in the conversations' logs instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from banksman.gateway.operation.declaration import Audit


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
    AuditedAction("key.created", "POST /context/keys", details=("user", "name", "rights", "expires_at")),
    AuditedAction("key.revoked", "DELETE /context/keys/{key_id}"),
    AuditedAction("policy.changed", "PUT /context/policy", "policy update", ("revision",)),
    AuditedAction("assistant.created", "POST /context/assistants", "assistant create", ("name", "revision")),
    AuditedAction(
        "assistant.changed",
        "PUT /context/assistants/{assistant_id}",
        "assistant update",
        ("name", "revision"),
    ),
    AuditedAction(
        "assistant.restored",
        "POST /context/assistants/{assistant_id}/revisions/{revision}/restore",
        "assistant restore",
        ("name", "revision"),
    ),
    AuditedAction("assistant.deleted", "DELETE /context/assistants/{assistant_id}", "assistant delete"),
    AuditedAction("prompt.created", "POST /v1/system-prompts", "prompt create"),
    AuditedAction("prompt.changed", "PUT /v1/system-prompts/{prompt_id}", "prompt update"),
    AuditedAction("prompt.deleted", "DELETE /v1/system-prompts/{prompt_id}", "prompt delete"),
    AuditedAction("workflow.created", "POST /workflows", "workflow create", ("title",)),
    AuditedAction("workflow.changed", "PUT /workflows/{name}", "workflow update", ("title",)),
    AuditedAction("workflow.deleted", "DELETE /workflows/{name}", "workflow delete"),
    AuditedAction("schedule.created", "POST /context/schedules", "schedule create", ("name", "enabled")),
    AuditedAction(
        "schedule.changed", "PUT /context/schedules/{schedule_id}", "schedule update", ("name", "enabled")
    ),
    AuditedAction("schedule.deleted", "DELETE /context/schedules/{schedule_id}", "schedule delete"),
    AuditedAction("secret.set", "PUT /context/secrets/{name}", "secret set"),
    AuditedAction("secret.deleted", "DELETE /context/secrets/{name}", "secret delete"),
    # The address of a webhook may contain a token.
    AuditedAction("webhook.created", "POST /context/webhooks", details=("events", "format")),
    AuditedAction("webhook.changed", "PUT /context/webhooks/{webhook_id}", details=("events", "format")),
    AuditedAction("webhook.deleted", "DELETE /context/webhooks/{webhook_id}"),
    AuditedAction("mcp_server.created", "POST /context/mcp-servers", "mcp create", ("name",)),
    AuditedAction("mcp_server.changed", "PUT /context/mcp-servers/{server_id}", "mcp update", ("name",)),
    AuditedAction(
        "mcp_server.approved", "POST /context/mcp-servers/{server_id}/approve", "mcp approve", ("name",)
    ),
    AuditedAction("mcp_server.deleted", "DELETE /context/mcp-servers/{server_id}", "mcp delete"),
    AuditedAction(
        "mcp_server.signed_in", "POST /context/mcp-servers/{server_id}/sign-in/finish", "mcp finish"
    ),
    AuditedAction("mcp_server.signed_out", "DELETE /context/mcp-servers/{server_id}/sign-in", "mcp sign_out"),
    AuditedAction(
        "conversation.deleted", "DELETE /context/conversations/{conversation_id}", "conversation delete"
    ),
    AuditedAction("conversation.imported", "POST /context/conversations/import", "conversation import"),
    AuditedAction("run.cancelled", "POST /operator/runs/{tenant}/{run_id}/cancel", details=("reason",)),
    AuditedAction("dead_letter.discarded", "DELETE /operator/dead-letters/{letter_id}"),
    AuditedAction("dead_letter.replayed", "POST /operator/dead-letters/{letter_id}/replay"),
)
SIGNED_IN: Final = Audit("user.signed_in")
"""Recorded by its endpoint: the caller is known only afterwards."""
MCP_SIGNED_IN: Final = Audit("mcp_server.signed_in")
"""Recorded by its endpoint: the user returns from another server, without a key."""
BY_HTTP: Final = {action.http: action for action in ACTIONS}
BY_NATS: Final = {action.nats: action for action in ACTIONS if action.nats}
