"""The state of the system, for operators: streams, queues, runners, tenants, and dead letters with replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.frames import RunCancel
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Stored, Token
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation import parameters
from banksman.gateway.operation.caller import OPERATE
from banksman.gateway.operation.declaration import Audit, Operations
from banksman.gateway.operator import work
from banksman.gateway.operator.overview import Overview, OverviewReader
from banksman.gateway.operator.processes import Processes, Services
from banksman.gateway.operator.tenants import MAX_TENANTS, TenantPage, Tenants
from banksman.gateway.runs.starts import RunCancels
from banksman.gateway.usage.operations import UsageReports

Letters = Annotated[work.DeadLetters, parameters.provided(work.DeadLetters)]
Limit = Annotated[int, Query(ge=1, le=work.MAX_LETTERS)]
After = Annotated[int, Query(ge=0, le=parameters.MAX_POSITION)]
Letter = Annotated[int, Path(ge=1, le=parameters.MAX_POSITION)]
TenantLimit = Annotated[int, Query(ge=1, le=MAX_TENANTS)]
RunLimit = Annotated[int, Query(ge=1, le=work.MAX_RUNS)]
NO_OPERATORS = "no user of NATS has the right `operator`"

operations = Operations("operations", right=OPERATE)


class OperatorCancel(parameters.RequestBody):
    """Why an operator cancels a run."""

    reason: str = Field(min_length=1, max_length=2000)


class OperatorCancelled(Stored):
    """A run whose cancellation is stored."""

    tenant: Token
    run_id: Token
    reason: str


@operations.add("operator.overview", "GET /operator/overview", not_over_nats=NO_OPERATORS)
async def read_overview(reader: Annotated[OverviewReader, parameters.provided(OverviewReader)]) -> Overview:
    """Read the sizes of streams, the messages that wait for services, and the runners that are alive."""
    return await reader.overview()


@operations.add("operator.services", "GET /operator/services", not_over_nats=NO_OPERATORS)
async def read_services(processes: Annotated[Processes, parameters.provided(Processes)]) -> Services:
    """Read the state of each process (version, readiness or the problem, load) and of the NATS servers.

    The processes report on request: the response takes up to three seconds if a process does not reply.
    """
    return await processes.read()


@operations.add("operator.tenants", "GET /operator/tenants", not_over_nats=NO_OPERATORS)
async def list_tenants(
    tenants: Annotated[Tenants, parameters.provided(Tenants)],
    limit: TenantLimit = MAX_TENANTS,
    after: Token | None = None,
) -> TenantPage:
    """List the tenants, sorted by name: what each consumed today and this month, its keys and its limits.

    A tenant is listed if it consumed something, has API keys, or has limits of its own.
    """
    return await tenants.page(after=after or "", limit=limit)


@operations.add("dead_letter.list", "GET /operator/dead-letters", not_over_nats=NO_OPERATORS)
async def list_dead_letters(
    letters: Letters, limit: Limit = work.MAX_LETTERS, after: After = 0
) -> work.DeadLetterPage:
    """List the messages that could not be handled, oldest first."""
    return await letters.page(after=after, limit=limit)


@operations.add("dead_letter.read", "GET /operator/dead-letters/{letter_id}", not_over_nats=NO_OPERATORS)
async def read_dead_letter(letter_id: Letter, letters: Letters) -> work.ShownDeadLetter:
    """Read a dead letter with its headers and the beginning of its content."""
    return await letters.read(letter_id)


@operations.add(
    "dead_letter.discard", "DELETE /operator/dead-letters/{letter_id}", audit=(), not_over_nats=NO_OPERATORS
)
async def discard_dead_letter(letter_id: Letter, letters: Letters) -> None:
    """Delete a dead letter permanently."""
    await letters.discard(letter_id)


@operations.add("operator.runs", "GET /operator/runs", not_over_nats=NO_OPERATORS)
async def list_open_runs(
    runs: Annotated[work.OpenRuns, parameters.provided(work.OpenRuns)],
    state: work.OpenState = "queued",
    limit: RunLimit = work.MAX_RUNS,
    after: After = 0,
    tenant: Token | None = None,
) -> work.OpenRunPage:
    """List the runs that are queued or wait for users, oldest first, without contents.

    Without `tenant`, the runs of all tenants are listed.
    """
    return await runs.page(state, after=after, limit=limit, tenant=tenant or ANY)


@operations.add(
    "operator.cancel",
    "POST /operator/runs/{tenant}/{run_id}/cancel",
    status=202,
    audit=Audit("run.cancelled", ("reason",)),
    not_over_nats=NO_OPERATORS,
)
async def cancel_open_run(
    tenant: Token,
    run_id: Token,
    body: parameters.StrictBody[OperatorCancel],
    cancels: Annotated[RunCancels, parameters.provided(RunCancels)],
    caller: parameters.CallerDep,
    request_id: parameters.RequestId,
) -> OperatorCancelled:
    """Cancel a run of any tenant. The reason is in its log, and in the audit trail of the tenant."""
    frame = RunCancel(type="run.cancel", id=request_id, run_id=run_id, reason=body.reason)
    # The log shows the tenant's users that none of them cancelled the run.
    operator = replace(caller, tenant=tenant, user=f"operator {caller.user}")
    await cancels.cancel(operator, frame)
    return OperatorCancelled(tenant=tenant, run_id=run_id, reason=body.reason)


@operations.add(
    "dead_letter.replay",
    "POST /operator/dead-letters/{letter_id}/replay",
    audit=(),
    not_over_nats=NO_OPERATORS,
)
async def replay_dead_letter(letter_id: Letter, letters: Letters) -> None:
    """Publish a dead letter on its subject again, and remove it from the dead letters."""
    await letters.replay(letter_id)


async def build(base: Foundation) -> None:
    bus, services = base.bus, base.services
    services.add(
        work.DeadLetters(bus),
        work.OpenRuns(bus, services[ApprovalSlots]),
        OverviewReader(bus),
        Processes(bus),
        Tenants(bus, base.keys, services[UsageReports], base.settings.tenants),
    )


FEATURE = Feature(operations, build)
