"""The tenants for operators: usage, API keys and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below, subjects_in
from banksman.bus.names import APPROVALS, RUNS, USAGE, WORKFLOWS, kv_stream, kv_subject
from banksman.contracts.subjects import ANY, approval_reply, approval_request, run_work, workflow_run
from banksman.contracts.usage import UsageReport, passthrough_key, usage_key
from banksman.contracts.wire import Stored, Token
from banksman.gateway.identity.auth import Keys
from banksman.gateway.operation.caller import OPERATE
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import provided
from banksman.gateway.operator.work import NO_OPERATORS
from banksman.gateway.usage.operations import UsageReports
from banksman.runtime.tenants import TenantSettings

MAX_TENANTS = 50
"""Tenants in one page. Each tenant takes two reads and four counts. For a count the broker lists the counted
subjects: at most as many as the limits of the tenant, such as `waiting_runs`, permit in a queue."""


operations = Operations("operations", right=OPERATE)


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
        self: Service,
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


Service = Annotated[Tenants, provided(Tenants)]
