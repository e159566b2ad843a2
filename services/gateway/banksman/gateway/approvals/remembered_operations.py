"""The decisions that apply to further calls: list, withdraw."""

from __future__ import annotations

from typing import Annotated

from banksman.gateway.approvals.remembered import ListedRemembered, RememberedDecisions
from banksman.gateway.operation.caller import APPROVE
from banksman.gateway.operation.declaration import EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, provided

Service = Annotated[RememberedDecisions, provided(RememberedDecisions)]

operations = Operations("policies")


@operations.add("remembered.list", "GET /context/remembered")
async def list_remembered(remembered: Service, caller: CallerDep) -> Listing[ListedRemembered]:
    """List the decisions that apply to further calls, newest first."""
    return Listing[ListedRemembered](items=await remembered.list(caller))


@operations.add(
    "remembered.withdraw",
    "DELETE /context/remembered/{approval_id}",
    right=APPROVE,
    status=204,
    errors=(MISSING, EARLY),
)
async def withdraw_remembered(approval_id: str, remembered: Service, caller: CallerDep) -> None:
    """Withdraw a remembered decision: the next matching call waits for approval again."""
    await remembered.withdraw(caller, approval_id)
