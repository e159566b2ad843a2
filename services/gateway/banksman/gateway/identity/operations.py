"""API keys, tickets for websockets, and the secrets of the tenant for its tools."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from banksman.contracts.tools import (
    MAX_SECRET_CHARS,
    MIN_SECRET_CHARS,
    SecretDescription,
    SecretServers,
)
from banksman.contracts.wire import Stored, Token
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.api_keys import ApiKeys, KeyDescription, NewKey
from banksman.gateway.identity.auth import TICKET_S, Tickets
from banksman.gateway.identity.tenant_secrets import SecretStore
from banksman.gateway.operation.caller import ADMIN, READ
from banksman.gateway.operation.declaration import CONFLICT, FORBIDDEN, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided

CreatedKeys = Annotated[ApiKeys, provided(ApiKeys)]
Secrets = Annotated[SecretStore, provided(SecretStore)]
TenantQuery = Annotated[
    Token | None, Query(description="Another tenant than that of the key; needs the right `operator`.")
]

key_operations = Operations("keys", right=ADMIN)
ticket_operations = Operations("assistants")
secret_operations = Operations("secrets", right=ADMIN)


class CreatedKey(KeyDescription):
    """A new key."""

    key: str
    """The key itself. It is stored nowhere and shown only here."""


class IssuedTicket(Stored):
    """A ticket that opens one websocket: `GET /ws?ticket=…`."""

    ticket: str
    expires_in_s: int


class SecretBody(RequestBody):
    """The value of a secret."""

    # The limits are checked by the service, whose error does not show the value.
    value: str = Field(
        repr=False, json_schema_extra={"minLength": MIN_SECRET_CHARS, "maxLength": MAX_SECRET_CHARS}
    )
    """8 to 8,000 characters without NUL."""
    servers: SecretServers | None = None
    """The only servers that receive the secret: names of tool servers, and `mcp:ID` for MCP servers. If
    omitted, a new secret is for all servers of the tenant, and a stored secret remains for its named ones."""


@key_operations.add("key.list", "GET /context/keys", errors=(FORBIDDEN,))
async def list_keys(
    api_keys: CreatedKeys, caller: CallerDep, tenant: TenantQuery = None
) -> Listing[KeyDescription]:
    """List the API keys that were created here, oldest first."""
    return Listing[KeyDescription](items=tuple(await api_keys.list(caller, tenant)))


@key_operations.add(
    "key.create",
    "POST /context/keys",
    status=201,
    errors=(FORBIDDEN, CONFLICT),
    audit=Audit("key.created", ("user", "name", "rights", "expires_at")),
)
async def create_key(
    body: StrictBody[NewKey], api_keys: CreatedKeys, caller: CallerDep, tenant: TenantQuery = None
) -> CreatedKey:
    """Create an API key. Its text is in this response only."""
    text, key = await api_keys.create(caller, body, tenant)
    return CreatedKey(**dict(key), key=text)


@key_operations.add("key.read", "GET /context/keys/{key_id}", errors=(FORBIDDEN, MISSING))
async def read_key(
    key_id: str, api_keys: CreatedKeys, caller: CallerDep, tenant: TenantQuery = None
) -> KeyDescription:
    """Read an API key."""
    return await api_keys.get(caller, key_id, tenant)


@key_operations.add(
    "key.revoke",
    "DELETE /context/keys/{key_id}",
    errors=(FORBIDDEN, MISSING, CONFLICT),
    audit=Audit("key.revoked"),
)
async def revoke_key(
    key_id: str, api_keys: CreatedKeys, caller: CallerDep, tenant: TenantQuery = None
) -> None:
    """Revoke an API key: requests with it are refused at once, and its websockets are closed."""
    await api_keys.revoke(caller, key_id, tenant)


@ticket_operations.add(
    "ticket.issue",
    "POST /v1/ws-ticket",
    right=READ,
    status=201,
    not_over_nats="a ticket stands for the key of an HTTP request",
)
async def issue_ticket(issued: Annotated[Tickets, provided(Tickets)], caller: CallerDep) -> IssuedTicket:
    """Issue a ticket that opens one websocket within 30 s: `GET /ws?ticket=…`."""
    return IssuedTicket(ticket=await issued.issue(caller), expires_in_s=TICKET_S)


@secret_operations.add("secret.list", "GET /context/secrets")
async def list_secrets(stored: Secrets, caller: CallerDep) -> Listing[SecretDescription]:
    """List the names of the tenant's secrets."""
    return Listing[SecretDescription](items=tuple(await stored.list(caller)))


@secret_operations.add(
    "secret.set",
    "PUT /context/secrets/{name}",
    errors=(CONFLICT,),
    audit=Audit("secret.set"),
    confidential=True,
)
async def set_secret(
    name: str, body: StrictBody[SecretBody], stored: Secrets, caller: CallerDep
) -> SecretDescription:
    """Set a secret. Tools that declare it receive the value with their next call; no model sees it."""
    return await stored.set(caller, name, body.value, body.servers)


@secret_operations.add("secret.delete", "DELETE /context/secrets/{name}", audit=Audit("secret.deleted"))
async def delete_secret(name: str, stored: Secrets, caller: CallerDep) -> None:
    """Delete a secret. Calls of tools that declare it are refused from then on."""
    await stored.delete(caller, name)


operations = (*key_operations, *ticket_operations, *secret_operations)


async def build(base: Foundation) -> None:
    api_keys = ApiKeys(base.bus, base.keys, base.clock)
    await base.stack.enter_async_context(api_keys.view)
    base.services.add(api_keys, Tickets(base.bus, base.clock), SecretStore(base.bus, base.box, base.clock))


FEATURE = Feature(operations, build)
