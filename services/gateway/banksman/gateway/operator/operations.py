"""The state of the system, for operators: streams, queues, runners, tenants, and dead letters with replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query
from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below, subjects_in
from banksman.bus.names import APPROVALS, RUNS, USAGE, WORKFLOWS, kv_stream, kv_subject
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts.frames import RunCancel
from banksman.contracts.subjects import ANY, approval_reply, approval_request, run_work, workflow_run
from banksman.contracts.usage import UsageReport, passthrough_key, usage_key
from banksman.contracts.wire import Stored, Token
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation import parameters
from banksman.gateway.operation.caller import OPERATE
from banksman.gateway.operation.declaration import Audit, Operations
from banksman.gateway.operation.parameters import provided
from banksman.gateway.operator import work
from banksman.gateway.operator.overview import Overview, OverviewReader
from banksman.gateway.operator.processes import Processes, Services
from banksman.gateway.operator.work import NO_OPERATORS
from banksman.gateway.runs.starts import RunCancels
from banksman.gateway.usage.operations import UsageReports
from banksman.runtime.tenants import TenantSettings

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


MAX_TENANTS = 50
"""Tenants in one page. Each tenant takes two reads and four counts. For a count the broker lists the counted
subjects: at most as many as the limits of the tenant, such as `waiting_runs`, permit in a queue."""


class TenantRuns(Stored):
    """The runs of a tenant that have not ended."""

    queued: int
    """Runs that no agent has ended or parked: they wait for an agent, or an agent drives them."""
    queued_workflows: int
    """The same for runs of workflows."""
    parked: int
    """Approval requests and requests for a value without a reply: their runs wait for users."""


class ListedTenant(UsageReport):
    """A tenant with its usage, its keys and its limits."""

    stored_bytes: int
    """Bytes of its conversations."""
    keys: int
    """API keys of the tenant that this gateway accepts, without expired ones."""
    limits: dict[str, int | float]
    """Its limits by their names in the setting `tenants`; a limit that is missing does not apply."""
    runs: TenantRuns


class TenantPage(Stored):
    """A page of the tenants, sorted by name."""

    items: tuple[ListedTenant, ...]
    next: Token | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True)
class Tenants:
    bus: Bus
    keys: Keys
    usage: UsageReports
    settings: TenantSettings

    @operations.add("operator.tenants", "GET /operator/tenants", not_over_nats=NO_OPERATORS)
    async def list_tenants(
        self: TenantService,
        limit: Annotated[int, Query(ge=1, le=MAX_TENANTS)] = MAX_TENANTS,
        after: Token | None = None,
    ) -> TenantPage:
        """List the tenants, sorted by name: what each consumed today and this month, its keys and its limits.

        A tenant is listed if it consumed something, has API keys, or has limits of its own.
        """
        keys = self.keys.by_tenant()
        known = {*await self._counted(), *keys, *self.settings.named}
        names = sorted(name for name in known if after is None or name > after)
        page = names[:limit]
        items = tuple([await self._tenant(name, keys[name]) for name in page])
        return TenantPage(items=items, next=page[-1] if len(names) > limit else None)

    async def _counted(self) -> set[str]:
        """Return the tenants whose usage is stored. The broker sends only their names."""
        stream = kv_stream(USAGE)
        places = [kv_subject(USAGE, key(ANY)) for key in (usage_key, passthrough_key)]
        return {
            subject.rpartition(".")[2]
            for below in places
            async for subject, _ in subjects_in(self.bus, stream, below)
        }

    async def _tenant(self, name: str, keys: int) -> ListedTenant:
        totals = await self.usage.totals(name)
        return ListedTenant(
            **dict(self.usage.report(name, totals)),
            stored_bytes=totals.stored_bytes,
            keys=keys,
            limits=self.settings.of(name).model_dump(exclude_none=True),
            runs=await self._runs(name),
        )

    async def _runs(self, name: str) -> TenantRuns:
        return TenantRuns(
            queued=await count_below(self.bus, RUNS, run_work(name, ANY)),
            queued_workflows=await count_below(self.bus, WORKFLOWS, workflow_run(ANY, name, ANY)),
            parked=len(
                await self._ids(approval_request(name, ANY)) - await self._ids(approval_reply(name, ANY))
            ),
        )

    async def _ids(self, below: str) -> set[str]:
        return {subject.rpartition(".")[2] async for subject, _ in subjects_in(self.bus, APPROVALS, below)}


TenantService = Annotated[Tenants, provided(Tenants)]


async def build(base: Foundation) -> None:
    bus, services = base.bus, base.services
    services.add(
        work.DeadLetters(bus),
        work.OpenRuns(bus, services[ApprovalSlots]),
        OverviewReader(bus),
        Processes(bus),
        Tenants(bus, base.keys, services[UsageReports], base.settings.tenants),
    )


FEATURE = Feature((*operations, *work.operations), build)
