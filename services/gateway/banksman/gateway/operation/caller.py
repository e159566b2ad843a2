"""The authenticated client of a request, and the rights that operations need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from banksman.contracts.administration import AuditInterface, Right
from banksman.contracts.errors import Forbidden, Unauthorized
from banksman.gateway.settings import Mode

ALL_MODES: frozenset[Mode] = frozenset(("context", "passthrough"))
TENANT_RIGHTS: frozenset[Right] = frozenset(("chat", "approve", "admin"))
"""All rights that concern one tenant."""
ALL_RIGHTS: frozenset[Right] = TENANT_RIGHTS | frozenset[Right](("operator",))

Rights = tuple[Right, ...]
"""Rights of which a caller needs at least one."""
READ: Final[Rights] = ("chat", "approve")
"""For requests that only read conversations."""
CHAT: Final[Rights] = ("chat",)
APPROVE: Final[Rights] = ("approve",)
ADMIN: Final[Rights] = ("admin", "operator")
"""For the administration of a tenant."""
OPERATE: Final[Rights] = ("operator",)
"""For what concerns all tenants."""
PUBLIC: Final[Rights] = ()
"""For requests without a key."""


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    user: str
    modes: frozenset[Mode] = ALL_MODES
    """The endpoints that the caller's key may use."""
    rights: frozenset[Right] = TENANT_RIGHTS
    expires_at: datetime | None = None
    """Expiry of the caller's key; None for a key that never expires."""
    key: str | None = None
    """SHA-256 of the caller's key; None for a caller without a key."""
    interface: AuditInterface = "http"

    @property
    def may_approve(self) -> bool:
        return "approve" in self.rights

    def check(self, mode: Mode) -> None:
        if mode not in self.modes:
            raise Forbidden(f"this key may not use {mode} endpoints")

    def need(self, *rights: Right) -> None:
        if self.rights.isdisjoint(rights):
            raise Forbidden(f"this needs the right {' or '.join(rights)}")

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the key expires; None for a key that never expires."""
        return None if self.expires_at is None else (self.expires_at - datetime.now(UTC)).total_seconds()

    @property
    def expired(self) -> bool:
        return self.remaining_s is not None and self.remaining_s <= 0

    def unexpired(self) -> Caller:
        """Return this caller; raise `Unauthorized` if the key has expired."""
        if self.expired:
            raise Unauthorized(f"the {'token' if self.key is None else 'API key'} has expired")
        return self


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the API key or token in the header `Authorization: Bearer` or `x-api-key`; None without one."""
    return bearer(headers.get("authorization")) or headers.get("x-api-key")


def bearer(authorization: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer` header; None for another header or without one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
