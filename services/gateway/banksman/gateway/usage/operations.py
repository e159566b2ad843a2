"""The usage of the tenant."""

from __future__ import annotations

from typing import Annotated

from banksman.contracts.usage import UsageReport
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.usage.reports import UsageReports

operations = Operations("assistants")


@operations.add("usage", "GET /context/usage")
async def read_usage(
    reports: Annotated[UsageReports, provided(UsageReports)], caller: CallerDep
) -> UsageReport:
    """Read the usage of the tenant's runs today and this month (UTC), with the operator's limits."""
    return await reports.of(caller)
