"""The state of the system, for operators: streams, queues, runners, tenants, and dead letters with replay."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from banksman.contracts.wire import Token
from banksman.gateway.asgi.dependencies import OperatorDep, ServiceDep
from banksman.gateway.asgi.routing import router
from banksman.gateway.service.operations import MAX_LETTERS, DeadLetterPage, Overview
from banksman.gateway.service.processes import Services
from banksman.gateway.service.resources import MAX_POSITION
from banksman.gateway.service.tenants import MAX_TENANTS, TenantPage

Limit = Annotated[int, Query(ge=1, le=MAX_LETTERS)]
After = Annotated[int, Query(ge=0, le=MAX_POSITION)]
Letter = Annotated[int, Path(ge=1, le=MAX_POSITION)]
TenantLimit = Annotated[int, Query(ge=1, le=MAX_TENANTS)]

routes = router("operations")


@routes.get("/operator/overview")
async def read_overview(gateway: ServiceDep, caller: OperatorDep) -> Overview:
    """Read what the streams hold, which messages wait for services, and which runners are alive."""
    return await gateway.operations.overview()


@routes.get("/operator/services")
async def read_services(gateway: ServiceDep, caller: OperatorDep) -> Services:
    """Read the state of each process: version, readiness and why not, load; and of the NATS servers.

    The processes report when this is requested, so it takes up to three seconds if one does not respond.
    """
    return await gateway.processes.read()


@routes.get("/operator/tenants")
async def list_tenants(
    gateway: ServiceDep, caller: OperatorDep, limit: TenantLimit = MAX_TENANTS, after: Token | None = None
) -> TenantPage:
    """List the tenants, sorted by name: what each consumed today and this month, its keys and its limits.

    A tenant is listed if it consumed something, has API keys, or has limits of its own.
    """
    return await gateway.tenants.page(after=after or "", limit=limit)


@routes.get("/operator/dead-letters")
async def list_dead_letters(
    gateway: ServiceDep, caller: OperatorDep, limit: Limit = MAX_LETTERS, after: After = 0
) -> DeadLetterPage:
    """List the messages that could not be handled, oldest first."""
    return await gateway.operations.dead_letters(after=after, limit=limit)


@routes.post("/operator/dead-letters/{letter_id}/replay", status_code=204, response_class=Response)
async def replay_dead_letter(letter_id: Letter, gateway: ServiceDep, caller: OperatorDep) -> None:
    """Publish a dead letter on its subject again, and remove it from the dead letters."""
    await gateway.operations.replay(letter_id)
