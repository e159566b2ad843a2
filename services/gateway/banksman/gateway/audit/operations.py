"""The audit trail: who changed what of a tenant, and when."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response

from banksman.contracts.ids import check_token
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Timestamp
from banksman.gateway.audit.trail import MAX_ENTRIES, AuditFilter, AuditPage, ExportFormat, Trail
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN
from banksman.gateway.operation.declaration import FORBIDDEN, Operations
from banksman.gateway.operation.parameters import MAX_POSITION, CallerDep, provided
from banksman.gateway.operation.streaming import StreamedResponse

Service = Annotated[Trail, provided(Trail)]
Actor = Annotated[str | None, Query(max_length=200)]
Action = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z_]{1,32}(\.[a-z_]{1,32})?$",
        description="`key.created`, or `key` for all actions on keys.",
    ),
]
NamedTenant = Annotated[
    str | None,
    Query(max_length=64, description="For operators: another tenant, or `*` for all."),
]
After = Annotated[int | None, Query(ge=0, le=MAX_POSITION, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_ENTRIES)]
MEDIA_TYPES: dict[ExportFormat, str] = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8; header=present",
}

operations = Operations("audit", right=ADMIN)


async def requested(
    caller: CallerDep,
    actor: Actor = None,
    action: Action = None,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    tenant: NamedTenant = None,
) -> AuditFilter:
    """Return the filter of a request; raise `Forbidden` for other tenants, except to an operator."""
    if tenant is not None and tenant != caller.tenant:
        caller.need("operator")
        tenant = tenant if tenant == ANY else check_token(tenant, "tenant")
    return AuditFilter(tenant=tenant or caller.tenant, actor=actor, action=action, since=since, until=until)


@operations.add("audit.list", "GET /v1/audit", errors=(FORBIDDEN,))
async def list_audit(
    trail: Service,
    caller: CallerDep,
    after: After = None,
    limit: Limit = MAX_ENTRIES,
    actor: Actor = None,
    action: Action = None,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    tenant: NamedTenant = None,
) -> AuditPage:
    """List who changed what, newest first. A page with fewer than `limit` entries may not be the last."""
    wanted = await requested(caller, actor, action, since, until, tenant)
    return await trail.page(wanted, after=after, limit=limit)


@operations.add(
    "audit.export",
    "GET /v1/audit/export",
    not_over_nats="`audit.list` returns the entries in pages",
    response_class=Response,
    responses={200: {"content": {media_type.partition(";")[0]: {} for media_type in MEDIA_TYPES.values()}}},
)
async def export_audit(
    trail: Service, wanted: Annotated[AuditFilter, Depends(requested)], format: ExportFormat = "jsonl"
) -> StreamedResponse:
    """Download all entries, oldest first, as JSON lines or as CSV."""
    headers = {
        "content-type": MEDIA_TYPES[format],
        "content-disposition": f'attachment; filename="audit.{format}"',
    }
    return StreamedResponse(await trail.export(wanted, format), headers=headers)


async def build(base: Foundation) -> None:
    trail = Trail(base.bus, base.clock)
    base.dispatcher.trail = trail
    base.services.add(trail)


FEATURE = Feature(operations, build)
