"""The approval policy of a tenant, and the assistants of its runs under that policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from banksman.contracts.assistants import (
    MAX_RULES,
    ONE_APPROVER,
    ApprovalPolicy,
    ApprovalRule,
    ApprovalTerms,
    Assistant,
    Registries,
)
from banksman.gateway.assistants.tenant_store import POLICY, PolicyStore, TenantStore
from banksman.gateway.operation.caller import ADMIN
from banksman.gateway.operation.declaration import CONFLICT, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestBody, StrictBody, provided


class PolicyBody(RequestBody):
    """The approval policy of a tenant."""

    rules: tuple[ApprovalRule, ...] = Field(default=(), max_length=MAX_RULES)
    """Rules that are evaluated before those of an assistant. The first rule that matches a call decides."""
    approvals: ApprovalTerms = ONE_APPROVER
    """The minimum terms of every approval request."""
    registries: Registries = ()
    """Registries of packages that commands may install from, if the operator of their runner allows it."""
    revision: int | None = None
    """The revision to replace; null replaces any."""


@dataclass(frozen=True, slots=True)
class GovernedAssistants:
    assistants: TenantStore[Assistant]
    policies: TenantStore[ApprovalPolicy]

    async def in_use(self, tenant: str, assistant_id: str) -> Assistant:
        """Return an assistant with the policy of its tenant applied; both may be a moment old."""
        assistant = await self.assistants.in_use(tenant, assistant_id)
        return (await self.policies.in_use(tenant, POLICY)).applied_to(assistant)


Service = Annotated[PolicyStore, provided(PolicyStore)]

operations = Operations("policies")


@operations.add("policy.read", "GET /context/policy")
async def read_policy(policies: Service, caller: CallerDep) -> ApprovalPolicy:
    """Read the approval policy of the tenant, whose rules come before those of its assistants."""
    return await policies.get(caller.tenant, POLICY)


@operations.add("policy.update", "PUT /context/policy", right=ADMIN, errors=(CONFLICT,), audit=("revision",))
async def replace_policy(
    body: StrictBody[PolicyBody], policies: Service, caller: CallerDep
) -> ApprovalPolicy:
    """Replace the approval policy of the tenant. It applies to runs that start from now on."""
    stored = await policies.get(caller.tenant, POLICY)
    given = {"rules": body.rules, "approvals": body.approvals, "registries": body.registries}
    # A provider of searches that is set meanwhile must stay.
    revision = stored.revision if body.revision is None else body.revision
    return await policies.replace(caller.tenant, stored.model_copy(update=given), revision)
