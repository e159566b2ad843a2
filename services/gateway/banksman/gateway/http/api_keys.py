"""API keys: create, list, read, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from banksman.contracts.wire import Token
from banksman.gateway.identity.api_keys import KeyDescription, NewKey
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.service.dependencies import AdminDep, ServiceDep
from banksman.gateway.service.routing import StrictBody, router

TenantQuery = Annotated[
    Token | None, Query(description="Another tenant than that of the key; needs the right `operator`.")
]

routes = router("keys")


class CreatedKey(KeyDescription):
    """A new key."""

    key: str
    """The key itself. It is stored nowhere and shown only here."""


@routes.get("/context/keys")
async def list_keys(
    gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> Listing[KeyDescription]:
    """List the API keys that were created here, oldest first."""
    return Listing[KeyDescription](items=tuple(await gateway.api_keys.list(caller, tenant)))


@routes.post("/context/keys", status_code=201)
async def create_key(
    body: StrictBody[NewKey], gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> CreatedKey:
    """Create an API key. Its text is in this response only."""
    text, key = await gateway.api_keys.create(caller, body, tenant)
    return CreatedKey(**dict(key), key=text)


@routes.get("/context/keys/{key_id}")
async def read_key(
    key_id: str, gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> KeyDescription:
    """Read an API key."""
    return await gateway.api_keys.get(caller, key_id, tenant)


@routes.delete("/context/keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None) -> None:
    """Revoke an API key: requests with it are refused at once, and its websockets are closed."""
    await gateway.api_keys.revoke(caller, key_id, tenant)
