"""API keys, tickets for websockets, and the secrets of the tenant for its tools."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from banksman.bus.connection import Bus
from banksman.bus.names import TENANT_SECRETS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.kv import Bucket
from banksman.contracts import tools
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.ids import check_token
from banksman.contracts.tools import MAX_SECRET_CHARS, MIN_SECRET_CHARS, SecretDescription, SecretServers
from banksman.contracts.wire import Stored
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.api_keys import ApiKeys, key_operations
from banksman.gateway.identity.auth import TICKET_S, Tickets
from banksman.gateway.operation.caller import ADMIN, READ, Caller
from banksman.gateway.operation.declaration import CONFLICT, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided
from banksman.runs.ports import Clock

MAX_SECRETS = 100
"""Secrets of one tenant."""


secret_operations = Operations("secrets", right=ADMIN)


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


class SecretStore:
    def __init__(self, bus: Bus, box: SecretBox, clock: Clock) -> None:
        self._bucket = Bucket(bus, TENANT_SECRETS, tools.StoredSecret)
        self._box = box
        self._clock = clock

    @secret_operations.add("secret.list", "GET /context/secrets")
    async def list_secrets(self: Secrets, caller: CallerDep) -> Listing[SecretDescription]:
        """List the names of the tenant's secrets."""
        found = [_described(entry.value) async for entry in self._bucket.entries(caller.tenant)]
        return Listing[SecretDescription](items=tuple(sorted(found, key=lambda secret: secret.name)))

    @secret_operations.add(
        "secret.set", "PUT /context/secrets/{name}", errors=(CONFLICT,), audit=(), confidential=True
    )
    async def set_secret(
        self: Secrets, name: str, body: StrictBody[SecretBody], caller: CallerDep
    ) -> SecretDescription:
        """Set a secret. Tools that declare it receive the value with their next call; no model sees it."""
        return await self.set(caller, name, body.value, body.servers)

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

    @secret_operations.add("secret.delete", "DELETE /context/secrets/{name}", audit=())
    async def delete_secret(self: Secrets, name: str, caller: CallerDep) -> None:
        """Delete a secret. Calls of tools that declare it are refused from then on."""
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


Secrets = Annotated[SecretStore, provided(SecretStore)]
ticket_operations = Operations("assistants")


class IssuedTicket(Stored):
    """A ticket that opens one websocket: `GET /ws?ticket=…`."""

    ticket: str
    expires_in_s: int


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


operations = (*key_operations, *ticket_operations, *secret_operations)


async def build(base: Foundation) -> None:
    api_keys = ApiKeys(base.bus, base.keys, base.clock)
    await base.stack.enter_async_context(api_keys.view)
    base.services.add(api_keys, Tickets(base.bus, base.clock), SecretStore(base.bus, base.box, base.clock))


FEATURE = Feature(operations, build)
