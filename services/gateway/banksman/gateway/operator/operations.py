"""The state of the system, for operators: streams, queues, runners, tenants, and dead letters with replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.frames import RunCancel
from banksman.contracts.wire import Stored, Token
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation import parameters
from banksman.gateway.operation.caller import OPERATE
from banksman.gateway.operation.declaration import Audit, Operations
from banksman.gateway.operator import work
from banksman.gateway.operator.overview import Overview, OverviewReader
from banksman.gateway.operator.processes import Processes, Services
from banksman.gateway.operator.tenants import Tenants
from banksman.gateway.operator.tenants import operations as tenant_operations
from banksman.gateway.runs.starts import RunCancels
from banksman.gateway.usage.operations import UsageReports

operations = Operations("operations", right=OPERATE)


class OperatorCancel(parameters.RequestBody):
    """Why an operator cancels a run."""

    reason: str = Field(min_length=1, max_length=2000)


class OperatorCancelled(Stored):
    """A run whose cancellation is stored."""

    tenant: Token
    run_id: Token
    reason: str


@operations.add("operator.overview", "GET /operator/overview", not_over_nats=work.NO_OPERATORS)
async def read_overview(reader: Annotated[OverviewReader, parameters.provided(OverviewReader)]) -> Overview:
    """Read the sizes of streams, the messages that wait for services, and the runners that are alive."""
    return await reader.overview()


@operations.add("operator.services", "GET /operator/services", not_over_nats=work.NO_OPERATORS)
async def read_services(processes: Annotated[Processes, parameters.provided(Processes)]) -> Services:
    """Read the state of each process (version, readiness or the problem, load) and of the NATS servers.

    The processes report on request: the response takes up to three seconds if a process does not reply.
    """
    return await processes.read()


@operations.add(
    "operator.cancel",
    "POST /operator/runs/{tenant}/{run_id}/cancel",
    status=202,
    audit=Audit("run.cancelled", ("reason",)),
    not_over_nats=work.NO_OPERATORS,
    of_hidden=True,
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


async def build(base: Foundation) -> None:
    bus, services = base.bus, base.services
    services.add(
        work.DeadLetters(bus),
        work.OpenRuns(bus, services[ApprovalSlots]),
        OverviewReader(bus),
        Processes(bus),
        Tenants(bus, base.keys, services[UsageReports], base.settings.tenants),
    )


FEATURE = Feature((*operations, *work.operations, *tenant_operations), build)
