"""API keys, tickets for websockets, and the secrets of the tenant for its tools."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Query
from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.names import TENANT_SECRETS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.kv import Bucket
from banksman.contracts import tools
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.ids import check_token
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
from banksman.gateway.operation.caller import ADMIN, READ, Caller
from banksman.gateway.operation.declaration import CONFLICT, FORBIDDEN, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.runs.ports import Clock

MAX_SECRETS = 100
"""Secrets of one tenant."""


class SecretStore:
    def __init__(self, bus: Bus, box: SecretBox, clock: Clock) -> None:
        self._bucket = Bucket(bus, TENANT_SECRETS, tools.StoredSecret)
        self._box = box
        self._clock = clock

    async def list(self, caller: Caller) -> list[tools.SecretDescription]:
        """Return the secrets of the caller's tenant without their values, sorted by name."""
        found = [_described(entry.value) async for entry in self._bucket.entries(caller.tenant)]
        return sorted(found, key=lambda secret: secret.name)

    async def set(
        self, caller: Caller, name: str, value: str, servers: tuple[str, ...] | None = None
    ) -> tools.SecretDescription:
        """Store a secret, or replace its value. The next call of a tool receives it.

        Args:
            servers: The only servers that receive it. Without them, a stored secret remains for its named
                servers, so that a new value does not become available to others.
        """
        _check(name, value)
        key = f"{caller.tenant}.{name}"
        entry = await self._bucket.get(key)
        if entry is None and len(await self._bucket.keys(caller.tenant)) >= MAX_SECRETS:
            raise Conflict(f"the tenant has {MAX_SECRETS} secrets; delete some first")
        now = self._clock.now()
        stored = None if entry is None else entry.value.servers
        secret = tools.StoredSecret(
            name=name,
            sealed=self._box.seal(value, key),
            created_at=now if entry is None else entry.value.created_at,
            created_by=caller.user if entry is None else entry.value.created_by,
            updated_at=now,
            updated_by=caller.user,
            servers=servers or stored,
        )
        await self._bucket.put(key, secret)
        return _described(secret)

    async def delete(self, caller: Caller, name: str) -> None:
        entry = await self._bucket.get(f"{caller.tenant}.{check_token(name, 'name')}")
        if entry is None:
            raise NotFound("secret", name)
        await self._bucket.delete(entry.key)


def _check(name: str, value: str) -> None:
    """Check a secret. Errors do not contain its value."""
    if not re.fullmatch(tools.NAME_PATTERN, name):
        raise BadInput("name", name, "a letter, then up to 63 letters, digits or '_'")
    if not tools.MIN_SECRET_CHARS <= len(value) <= tools.MAX_SECRET_CHARS or "\0" in value:
        rule = f"{tools.MIN_SECRET_CHARS} to {tools.MAX_SECRET_CHARS} characters without NUL"
        raise BadInput("value", None, f"{rule}; a shorter one could not be hidden in results")


def _described(secret: tools.StoredSecret) -> tools.SecretDescription:
    return tools.SecretDescription.model_validate(secret.model_dump(exclude={"sealed"}))


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
    errors=(FORBIDDEN, CONFLICT),
    audit=("user", "name", "rights", "expires_at"),
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
    "key.revoke", "DELETE /context/keys/{key_id}", errors=(FORBIDDEN, MISSING, CONFLICT), audit=()
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
    "secret.set", "PUT /context/secrets/{name}", errors=(CONFLICT,), audit=(), confidential=True
)
async def set_secret(
    name: str, body: StrictBody[SecretBody], stored: Secrets, caller: CallerDep
) -> SecretDescription:
    """Set a secret. Tools that declare it receive the value with their next call; no model sees it."""
    return await stored.set(caller, name, body.value, body.servers)


@secret_operations.add("secret.delete", "DELETE /context/secrets/{name}", audit=())
async def delete_secret(name: str, stored: Secrets, caller: CallerDep) -> None:
    """Delete a secret. Calls of tools that declare it are refused from then on."""
    await stored.delete(caller, name)


operations = (*key_operations, *ticket_operations, *secret_operations)


async def build(base: Foundation) -> None:
    api_keys = ApiKeys(base.bus, base.keys, base.clock)
    await base.stack.enter_async_context(api_keys.view)
    base.services.add(api_keys, Tickets(base.bus, base.clock), SecretStore(base.bus, base.box, base.clock))


FEATURE = Feature(operations, build)
