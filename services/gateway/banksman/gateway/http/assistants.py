"""Assistants, usage and tickets."""

from __future__ import annotations

from banksman.contracts.usage import UsageReport
from banksman.gateway.http.models import IssuedTicket
from banksman.gateway.identity.tickets import TICKET_S
from banksman.gateway.service.dependencies import CallerDep, ReaderDep, ServiceDep
from banksman.gateway.service.routing import router

routes = router("assistants")


@routes.get("/context/usage")
async def read_usage(gateway: ServiceDep, caller: CallerDep) -> UsageReport:
    """Read the usage of the tenant's runs today and this month (UTC), with the operator's limits."""
    return await gateway.usage.of(caller.tenant)


@routes.post("/v1/ws-ticket", status_code=201)
async def issue_ticket(gateway: ServiceDep, caller: ReaderDep) -> IssuedTicket:
    """Issue a ticket that opens one websocket within 30 s: `GET /ws?ticket=…`."""
    return IssuedTicket(ticket=await gateway.tickets.issue(caller), expires_in_s=TICKET_S)
