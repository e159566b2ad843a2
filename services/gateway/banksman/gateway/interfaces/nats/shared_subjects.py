"""The parts of the AsyncAPI document that handlers do not define: headers, parameters, other subjects."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from banksman.contracts.api import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.calls import Delta
from banksman.contracts.events import Commit
from banksman.contracts.frames import ErrorFrame
from banksman.contracts.registry import (
    RegisterTool,
    RegisterWorkflow,
    ToolList,
    ToolRegistration,
    WithdrawTool,
    WithdrawWorkflow,
    WorkflowRegistration,
)
from banksman.contracts.wire import WIRE_VERSION
from banksman.contracts.work import ApprovalRequest
from banksman.contracts.workflows import ProgressReported, ReportProgress

REQUEST_HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        REQUEST_ID: {
            "type": "string",
            "maxLength": 128,
            "description": "Identifies the request for 24 hours: a repeat gets the same reply. "
            "Defaults to the body's `id`.",
        },
        SCHEMA_VERSION: {
            "type": "string",
            "const": str(WIRE_VERSION),
            "description": "Version of the bodies.",
        },
    },
}
PARAMETERS = {
    "tenant": "The tenant, to whose account the client belongs.",
    "conversation_id": "The conversation.",
    "run_id": "The run. Its id begins with that of its conversation.",
    "approval_id": "The approval request.",
    "request_id": "The request for a value.",
    "workflow": "The name of the workflow.",
    "tool": "The name of the tool.",
    "prompt_id": "The system prompt.",
    "assistant_id": "The assistant.",
    "schedule_id": "The schedule.",
    "secret": "The name of the secret.",
    "key_id": "The API key.",
    "webhook_id": "The webhook.",
    "server_id": "The id of the MCP server.",
}
_COMMIT = "A stored commit. `replay` sends the same events as frames."
PUBLISHED: tuple[tuple[str, str, type[BaseModel], str], ...] = (
    ("live", "live.{tenant}.{conversation_id}", Commit, _COMMIT),
    (
        "delta",
        "delta.{tenant}.{conversation_id}",
        Delta,
        "A piece of text that a model writes. It may be lost; `message.completed` replaces all pieces.",
    ),
    (
        "approval request",
        "approval.request.{tenant}.{approval_id}",
        ApprovalRequest,
        "A new approval request, or request for a value, of the tenant.",
    ),
    (
        "api error",
        "api.{tenant}.error",
        ErrorFrame,
        "The error of a request without a reply subject: `reply_to` is its id, `details.subject` its "
        "subject.",
    ),
)
"""Title, subject, body and description of each subject that clients may subscribe to."""
REGISTRIES: tuple[tuple[str, type[BaseModel] | None, type[BaseModel], str], ...] = (
    ("tool.register", RegisterTool, ToolRegistration, "Register a tool, or renew its registration."),
    ("tool.withdraw", WithdrawTool, ToolRegistration, "Withdraw a tool."),
    ("tool.list", None, ToolList, "List the tools that the models of the tenant may call."),
    ("workflow.register", RegisterWorkflow, WorkflowRegistration, "Register a workflow, or change it."),
    ("workflow.withdraw", WithdrawWorkflow, WorkflowRegistration, "Withdraw a workflow."),
    ("workflow.progress", ReportProgress, ProgressReported, "Store the progress of a run during its turn."),
)
"""Subject, body, reply and description of the requests of tool and workflow servers."""
