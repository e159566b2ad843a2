"""The rights of API keys, the NATS API in addition to the frames of `frames.py`, and the audit trail.

A request over NATS is sent to `subjects.api(tenant, ...)`. Its body is the JSON of a client frame. The reply
is an `ack` or an `error` frame.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import Field

from banksman.contracts.frames import Detail
from banksman.contracts.wire import JsonValue, Stored, Timestamp, Wire

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

REQUEST_ID: Final = "Banksman-Request-Id"
"""Header with the idempotency key of a request; if it is missing, the body's `id` is the key."""
SCHEMA_VERSION: Final = "Banksman-Schema-Version"
"""Header with the version of the frames (`wire.WIRE_VERSION`)."""


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


MAX_TARGET_CHARS = 256
AuditInterface = Literal["http", "nats", "command"]
"""Where an action was requested: over HTTP, which the page uses, over the NATS API, or by a command of the
operator."""


class AuditEntry(Stored):
    """A completed administrative action. It contains no secrets and no contents."""

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
