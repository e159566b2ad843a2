"""The secrets of a tenant for its tools. Values can be set, but not read."""

from __future__ import annotations

import re

from banksman.bus.connection import Bus
from banksman.bus.names import TENANT_SECRETS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.kv import Bucket
from banksman.contracts import tools
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.ids import check_token
from banksman.gateway.operation.caller import Caller
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
