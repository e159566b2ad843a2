"""The state of the system, for operators: streams, queues, runners, tenants, and dead letters with replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from banksman.contracts.frames import RunCancel
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Stored, Token
from banksman.gateway.operation.bodies import RequestBody
from banksman.gateway.operator.dead_letters import MAX_LETTERS, DeadLetterPage, ShownDeadLetter
from banksman.gateway.operator.open_runs import MAX_RUNS, OpenRunPage, OpenState
from banksman.gateway.operator.overview import Overview
from banksman.gateway.operator.processes import Services
from banksman.gateway.operator.tenants import MAX_TENANTS, TenantPage
from banksman.gateway.service.dependencies import OperatorDep, RequestId, ServiceDep
from banksman.gateway.service.resources import MAX_POSITION
from banksman.gateway.service.routing import StrictBody, router

Limit = Annotated[int, Query(ge=1, le=MAX_LETTERS)]
After = Annotated[int, Query(ge=0, le=MAX_POSITION)]
Letter = Annotated[int, Path(ge=1, le=MAX_POSITION)]
TenantLimit = Annotated[int, Query(ge=1, le=MAX_TENANTS)]

RunLimit = Annotated[int, Query(ge=1, le=MAX_RUNS)]

routes = router("operations")


class OperatorCancel(RequestBody):
    """Why an operator cancels a run."""

    reason: str = Field(min_length=1, max_length=2000)


class OperatorCancelled(Stored):
    """A run whose cancellation is stored."""

    tenant: Token
    run_id: Token
    reason: str


@routes.get("/operator/overview")
async def read_overview(gateway: ServiceDep, caller: OperatorDep) -> Overview:
    """Read the sizes of streams, the messages that wait for services, and the runners that are alive."""
    return await gateway.operations.overview()


@routes.get("/operator/services")
async def read_services(gateway: ServiceDep, caller: OperatorDep) -> Services:
    """Read the state of each process (version, readiness or the problem, load) and of the NATS servers.

    The processes report on request: the response takes up to three seconds if a process does not reply.
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
    return await gateway.dead_letters.page(after=after, limit=limit)


@routes.get("/operator/dead-letters/{letter_id}")
async def read_dead_letter(letter_id: Letter, gateway: ServiceDep, caller: OperatorDep) -> ShownDeadLetter:
    """Read a dead letter with its headers and the beginning of its content."""
    return await gateway.dead_letters.read(letter_id)


@routes.delete("/operator/dead-letters/{letter_id}", status_code=204)
async def discard_dead_letter(letter_id: Letter, gateway: ServiceDep, caller: OperatorDep) -> None:
    """Delete a dead letter permanently."""
    await gateway.dead_letters.discard(letter_id)


@routes.get("/operator/runs")
async def list_open_runs(
    gateway: ServiceDep,
    caller: OperatorDep,
    state: OpenState = "queued",
    limit: RunLimit = MAX_RUNS,
    after: After = 0,
    tenant: Token | None = None,
) -> OpenRunPage:
    """List the runs that are queued or wait for users, oldest first, without contents.

    Without `tenant`, the runs of all tenants are listed.
    """
    return await gateway.open_runs.page(state, after=after, limit=limit, tenant=tenant or ANY)


@routes.post("/operator/runs/{tenant}/{run_id}/cancel", status_code=202)
async def cancel_open_run(
    tenant: Token,
    run_id: Token,
    body: StrictBody[OperatorCancel],
    gateway: ServiceDep,
    caller: OperatorDep,
    request_id: RequestId,
) -> OperatorCancelled:
    """Cancel a run of any tenant. The reason is in its log, and in the audit trail of the tenant."""
    frame = RunCancel(type="run.cancel", id=request_id, run_id=run_id, reason=body.reason)
    # The log shows the tenant's users that none of them cancelled the run.
    operator = replace(caller, tenant=tenant, user=f"operator {caller.user}")
    await gateway.dispatcher.handle(operator, frame)
    return OperatorCancelled(tenant=tenant, run_id=run_id, reason=body.reason)


@routes.post("/operator/dead-letters/{letter_id}/replay", status_code=204)
async def replay_dead_letter(letter_id: Letter, gateway: ServiceDep, caller: OperatorDep) -> None:
    """Publish a dead letter on its subject again, and remove it from the dead letters."""
    await gateway.dead_letters.replay(letter_id)
