"""The audit trail of the tenant."""

from __future__ import annotations

from pydantic import BaseModel, Field

from banksman.bus.control_plane.control import Received
from banksman.bus.messages import Message
from banksman.contracts.nats_api import REQUEST_ID
from banksman.contracts.wire import Timestamp, Wire
from banksman.gateway.nats_api.endpoints import Endpoints, caller_of, named_by, tenant_of
from banksman.gateway.service.audited import BY_NATS
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.resources import MAX_POSITION
from banksman.gateway.service.trail import (
    ACTION_PATTERN,
    MAX_ACTOR_CHARS,
    MAX_ENTRIES,
    AuditFilter,
    AuditPage,
)


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


def add_audit(api: Endpoints, gateway: Gateway) -> None:
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


async def record_request(gateway: Gateway, request: Message, reply: BaseModel) -> None:
    """Store a successful request in the audit trail, if its action is recorded there."""
    words = request.subject.split(".")[2:]
    if (action := BY_NATS.get(" ".join(words[:2]))) is None:
        return
    described = reply.model_dump(mode="json", by_alias=True)
    created = str(described.get("id") or described.get("name") or described.get("conversation_id") or "")
    await gateway.trail.record(
        caller_of(request),
        action,
        "nats",
        tenant=tenant_of(request),
        target=named_by(request) if len(words) > 2 else created,
        reply=described,
        request_id=request.headers.get(REQUEST_ID),
    )
