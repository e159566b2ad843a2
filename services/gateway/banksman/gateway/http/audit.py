"""The audit trail: who changed what of a tenant, and when."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response

from banksman.contracts.ids import check_token
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Timestamp
from banksman.gateway.audit.trail import (
    ACTION_PATTERN,
    MAX_ACTOR_CHARS,
    MAX_ENTRIES,
    AuditFilter,
    AuditPage,
    ExportFormat,
)
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.resources import MAX_POSITION
from banksman.gateway.service.routing import router

Action = Annotated[
    str | None,
    Query(pattern=ACTION_PATTERN, description="`key.created`, or `key` for all actions on keys."),
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

routes = router("audit")


async def requested(
    caller: AdminDep,
    actor: Annotated[str | None, Query(max_length=MAX_ACTOR_CHARS)] = None,
    action: Action = None,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    tenant: NamedTenant = None,
) -> AuditFilter:
    """Return the filter for the entries that a request selects.

    Raises:
        Forbidden: Only an operator sees the trails of other tenants.
    """
    if tenant is not None and tenant != caller.tenant:
        caller.need("operator")
        tenant = tenant if tenant == ANY else check_token(tenant, "tenant")
    return AuditFilter(tenant=tenant or caller.tenant, actor=actor, action=action, since=since, until=until)


Requested = Annotated[AuditFilter, Depends(requested)]


@routes.get("/v1/audit")
async def list_audit(
    gateway: ServiceDep, wanted: Requested, after: After = None, limit: Limit = MAX_ENTRIES
) -> AuditPage:
    """List who changed what, newest first. A page with fewer than `limit` entries may not be the last."""
    return await gateway.trail.page(wanted, after=after, limit=limit)


@routes.get(
    "/v1/audit/export",
    response_class=Response,
    responses={200: {"content": {media_type.partition(";")[0]: {} for media_type in MEDIA_TYPES.values()}}},
)
async def export_audit(
    gateway: ServiceDep, wanted: Requested, format: ExportFormat = "jsonl"
) -> StreamedResponse:
    """Download all entries, oldest first, as JSON lines or as CSV."""
    headers = {
        "content-type": MEDIA_TYPES[format],
        "content-disposition": f'attachment; filename="audit.{format}"',
    }
    return StreamedResponse(await gateway.trail.export(wanted, format), headers=headers)
