"""The approval policy of a tenant, and its remembered decisions."""

from __future__ import annotations

from banksman.bus.control import Received
from banksman.contracts.assistants import ApprovalPolicy
from banksman.contracts.errors import ErrorCode
from banksman.gateway.approvals.remembered import ListedRemembered
from banksman.gateway.assistants.policies import PolicyBody
from banksman.gateway.interfaces.nats.endpoints import ApiEndpoints, Deleted, caller_of, named_by
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.gateway import Gateway


def add_policies(api: ApiEndpoints, gateway: Gateway) -> None:
    """Serve the policy and the remembered decisions."""

    @api.serve("policy", "read")
    async def read_policy(message: Received) -> ApprovalPolicy:
        """Read the approval policy of the tenant, whose rules come before those of its assistants."""
        return await gateway.policies.get(caller_of(message))

    @api.serve("policy", "update", errors=(ErrorCode.CONFLICT,))
    async def replace_policy(request: PolicyBody, message: Received) -> ApprovalPolicy:
        """Replace the approval policy of the tenant. It applies to runs that start from now on."""
        return await gateway.policies.replace(caller_of(message), request)

    @api.serve("remembered", "list")
    async def list_remembered(message: Received) -> Listing[ListedRemembered]:
        """List the decisions that apply to further calls, newest first."""
        return Listing[ListedRemembered](items=await gateway.remembered.list(caller_of(message)))

    @api.serve("remembered", "withdraw", "{approval_id}", errors=(ErrorCode.NOT_FOUND, ErrorCode.NOT_READY))
    async def withdraw_remembered(message: Received) -> Deleted:
        """Withdraw a remembered decision: the next matching call waits for approval again."""
        await gateway.remembered.withdraw(caller_of(message), named_by(message))
        return Deleted(id=named_by(message))
