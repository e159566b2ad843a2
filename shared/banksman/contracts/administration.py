"""What administrators and operators use: rights, the audit trail, the state of processes, damaged logs."""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import Field

from banksman.contracts.approvals import CoveredBy
from banksman.contracts.wire import JsonValue, Stored, Timestamp, Token

Right = Literal["chat", "approve", "admin", "operator"]
"""
chat      use conversations, files, assistants, prompts, workflows and the model APIs
approve   decide approval requests, provide what workflows request, and read the conversations for it
admin     manage the tenant's API keys, webhooks, MCP servers and secrets, and list its tools
operator  manage the API keys of every tenant, read the state of the system, and replay dead letters
"""

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
DEFAULT_RIGHTS: Final[tuple[Right, ...]] = ("chat", "approve")
"""The rights of a key that is created without a list of rights."""

MAX_TARGET_CHARS = 256
AuditInterface = Literal["http", "websocket", "nats", "mcp", "agui", "a2a", "command", "system"]
"""Where an action was requested: over HTTP or the websocket, which the page uses, over the NATS API, over a
protocol of others, or by a command of the operator; `system` if no user requested it."""


class AuditEntry(Stored):
    """A completed administrative action, or the end of an approval request, without secrets and contents.

    The details of the latter are `DecisionDetails`.
    """

    ts: Timestamp
    tenant: str
    """The tenant whose data it changed."""
    actor: str
    """The user; `nats` for a client of the NATS API, whose account names the tenant alone."""
    actor_tenant: str | None = None
    """The tenant of an operator who acted on another tenant; null otherwise."""
    interface: AuditInterface
    action: str
    """The action: `key.created`."""
    target: str = Field(max_length=MAX_TARGET_CHARS)
    """Id or name of the changed object; empty for an object that a tenant has once."""
    details: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Details of the change by field name, such as the user and the rights of a key."""


DecidedCall = Literal["approved", "edited", "rejected", "stopped"]
"""
approved  the call may run as requested
edited    the call may run with the arguments of the approver
rejected  the call does not run, and the run continues
stopped   the call does not run, and the run ends
"""


class DecisionDetails(Stored):
    """How an approval request ended. The lists have one element for each call, of at most 20.

    The calls are not in it: they are in the log, and are removed with it.
    """

    conversation_id: Token
    run_id: Token
    commit: int
    """Stream sequence of the commit of the log that contains the request; 0 if unknown."""
    tools: tuple[str, ...]
    decisions: tuple[DecidedCall, ...] = ()
    """Empty if no user decided."""
    more: int = 0
    """Number of further calls."""
    remember: Literal["run", "conversation"] | None = None
    covers: tuple[CoveredBy, ...] = ()
    """What a remembered decision compares of further calls; empty if it is not remembered."""
    first_by: str | None = None
    """The first of two approvers, also if no second one followed."""


CheckName = Literal[
    "background",
    "disk",
    "lease",
    "log_record",
    "logs",
    "models",
    "nats",
    "nats_api",
    "process",
    "relay",
    "sandbox",
    "slots",
    "storage",
    "streams",
    "workspaces",
]
"""The checks of a process; `process` fails while it starts or shuts down."""


class ServiceState(Stored):
    """The state of one process of a service."""

    service: str
    """`gateway`, `agent` or `workflows`."""
    host: str
    """The host name of its machine or container."""
    pid: int
    version: str
    started_at: Timestamp
    ready: bool
    problems: dict[str, str]
    """Why it is not ready, by check."""
    warnings: dict[str, str]
    """Warnings of a ready process by check, such as full streams or damaged logs."""
    used: int
    """Number of runs that it drives, or of its open websockets."""
    places: int | None
    """Limit of `used`; null for no limit."""


class HeadsMark(Stored):
    """The claim of the process that writes the record of the last commits of all logs."""

    generation: Token
    """Id of the claim."""


class HeadsSegment(Stored):
    """The logs with commits in one segment of the stream."""

    heads: dict[str, int] = Field(default_factory=dict[str, int])
    """Stream sequence of the last commit in the segment, by `{tenant}.{conversation}`."""


class DamagedLog(Stored):
    """A log in which no run continues until an operator restores it or accepts the loss."""

    tenant: str
    conversation_id: str
    problem: str
    found_at: Timestamp
