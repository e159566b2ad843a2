"""Secrets of the tenant for its tools: set, list, delete. No endpoint returns a value."""

from __future__ import annotations

from banksman.contracts.tenant_secrets import SecretDescription
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.bodies import SecretBody
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

routes = router("secrets")


@routes.get("/context/secrets")
async def list_secrets(gateway: ServiceDep, caller: AdminDep) -> Listing[SecretDescription]:
    """List the names of the tenant's secrets."""
    return Listing[SecretDescription](items=tuple(await gateway.secrets.list(caller.tenant)))


@routes.put("/context/secrets/{name}")
async def set_secret(
    name: str, body: StrictBody[SecretBody], gateway: ServiceDep, caller: AdminDep
) -> SecretDescription:
    """Set a secret. Tools that declare it receive the value with their next call; no model sees it."""
    return await gateway.secrets.set(caller, name, body.value, body.servers)


@routes.delete("/context/secrets/{name}", status_code=204)
async def delete_secret(name: str, gateway: ServiceDep, caller: AdminDep) -> None:
    """Delete a secret. Calls of tools that declare it are refused from then on."""
    await gateway.secrets.delete(caller.tenant, name)
