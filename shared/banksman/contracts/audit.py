"""The audit trail: who changed what of a tenant, and when."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from banksman.contracts.wire import JsonValue, Stored, Timestamp

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
