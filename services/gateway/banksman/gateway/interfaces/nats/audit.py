"""The audit trail of the tenant."""

from __future__ import annotations

from pydantic import Field

from banksman.bus.control import Received
from banksman.contracts.wire import Timestamp, Wire
from banksman.gateway.audit.trail import (
    ACTION_PATTERN,
    MAX_ACTOR_CHARS,
    MAX_ENTRIES,
    AuditFilter,
    AuditPage,
)
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, tenant_of
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.resources import MAX_POSITION


class ListAudit(Wire):
    """Request a page of the audit trail, newest first."""

    after: int | None = Field(default=None, ge=0, le=MAX_POSITION)
    """`next` of the previous page."""
    limit: int = Field(default=MAX_ENTRIES, ge=1, le=MAX_ENTRIES)
    actor: str | None = Field(default=None, max_length=MAX_ACTOR_CHARS)
    action: str | None = Field(default=None, pattern=ACTION_PATTERN)
    """`key.created`, or `key` for all actions on keys."""
    since: Timestamp | None = None
    until: Timestamp | None = None


def add_audit(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve the audit trail."""

    @api.serve("audit", "list")
    async def list_audit(request: ListAudit, message: Received) -> AuditPage:
        """List who changed what of the tenant, newest first."""
        wanted = AuditFilter(
            tenant=tenant_of(message),
            actor=request.actor,
            action=request.action,
            since=request.since,
            until=request.until,
        )
        return await gateway.trail.page(wanted, after=request.after, limit=request.limit)
