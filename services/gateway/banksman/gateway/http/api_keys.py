"""API keys: create, list, read, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.asgi.dependencies import AdminDep, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.identity_settings import Mode, Right
from banksman.gateway.service.api_keys import DEFAULT_MODES, KeyRequest, StoredKey
from banksman.gateway.service.bodies import Listing, RequestBody

TenantQuery = Annotated[
    Token | None, Query(description="Another tenant than that of the key; needs the right `operator`.")
]

routes = router("keys")


class NewKey(RequestBody):
    """A key to create."""

    user: str = Field(min_length=1, max_length=200)
    """Who acts with the key; decisions show this name."""
    name: str = Field(default="", max_length=200)
    rights: tuple[Right, ...] = Field(default=("chat", "approve"), min_length=1, max_length=4)
    modes: tuple[Mode, ...] = Field(default=DEFAULT_MODES, min_length=1, max_length=2)
    """The endpoints that the key opens."""
    expires_at: Timestamp | None = None
    """Null for a key that never expires."""


class KeyDescription(Stored):
    """A key, without the key itself."""

    id: Token
    tenant: Token
    user: str
    name: str
    rights: tuple[Right, ...]
    modes: tuple[Mode, ...]
    created_at: Timestamp
    created_by: str
    expires_at: Timestamp | None
    """Null for a key that never expires."""


class CreatedKey(KeyDescription):
    """A new key."""

    key: str
    """The key itself. It is stored nowhere and shown only here."""


@routes.get("/context/keys")
async def list_keys(
    gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> Listing[KeyDescription]:
    """List the API keys that were created here, oldest first."""
    found = await gateway.api_keys.list(caller, tenant)
    return Listing[KeyDescription](items=tuple(_described(key) for key in found))


@routes.post("/context/keys", status_code=201)
async def create_key(
    body: StrictBody[NewKey], gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> CreatedKey:
    """Create an API key. Its text is in this response only."""
    text, key = await gateway.api_keys.create(caller, KeyRequest(**dict(body)), tenant)
    return CreatedKey(**dict(_described(key)), key=text)


@routes.get("/context/keys/{key_id}")
async def read_key(
    key_id: str, gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None
) -> KeyDescription:
    """Read an API key."""
    return _described(await gateway.api_keys.get(caller, key_id, tenant))


@routes.delete("/context/keys/{key_id}", status_code=204, response_class=Response)
async def revoke_key(key_id: str, gateway: ServiceDep, caller: AdminDep, tenant: TenantQuery = None) -> None:
    """Revoke an API key: requests with it are refused at once, and its websockets are closed."""
    await gateway.api_keys.revoke(caller, key_id, tenant)


def _described(key: StoredKey) -> KeyDescription:
    return KeyDescription.model_validate(key.model_dump(exclude={"sha256"}))
