"""The approval policy of a tenant, and its remembered decisions."""

from __future__ import annotations

from banksman.contracts.assistants import ApprovalPolicy
from banksman.gateway.approvals.remembered import ListedRemembered
from banksman.gateway.assistants.policies import PolicyBody
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.dependencies import AdminDep, ApproverDep, ReaderDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

routes = router("policies")


@routes.get("/context/policy")
async def read_policy(gateway: ServiceDep, caller: ReaderDep) -> ApprovalPolicy:
    """Read the approval policy of the tenant, whose rules come before those of its assistants."""
    return await gateway.policies.get(caller)


@routes.put("/context/policy")
async def replace_policy(
    body: StrictBody[PolicyBody], gateway: ServiceDep, caller: AdminDep
) -> ApprovalPolicy:
    """Replace the approval policy of the tenant. It applies to runs that start from now on."""
    return await gateway.policies.replace(caller, body)


@routes.get("/context/remembered")
async def list_remembered(gateway: ServiceDep, caller: ReaderDep) -> Listing[ListedRemembered]:
    """List the decisions that apply to further calls, newest first."""
    return Listing[ListedRemembered](items=await gateway.remembered.list(caller))


@routes.delete("/context/remembered/{approval_id}", status_code=204)
async def withdraw_remembered(approval_id: str, gateway: ServiceDep, caller: ApproverDep) -> None:
    """Withdraw a remembered decision: the next matching call waits for approval again."""
    await gateway.remembered.withdraw(caller, approval_id)
