"""Identify callers: API keys, and keyless mode."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from banksman.contracts.errors import Forbidden, Unauthorized
from banksman.contracts.ids import digest
from banksman.gateway.settings import ApiKey, GatewaySettings, Mode

ALL_MODES: frozenset[Mode] = frozenset(("context", "passthrough"))


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client."""

    tenant: str
    user: str
    modes: frozenset[Mode] = ALL_MODES
    """The endpoints that its key opens."""
    may_approve: bool = True
    """Whether it may decide approval requests."""
    expires_at: datetime | None = None
    """When its key expires; None for a key that never does."""

    def check(self, mode: Mode) -> None:
        """Check that the key opens the endpoints of a mode.

        Raises:
            Forbidden: It does not.
        """
        if mode not in self.modes:
            raise Forbidden(f"this key may not use {mode} endpoints")

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the key expires; None for a key that never does."""
        return None if self.expires_at is None else (self.expires_at - datetime.now(UTC)).total_seconds()

    @property
    def expired(self) -> bool:
        """Whether the key has expired."""
        return self.remaining_s is not None and self.remaining_s <= 0

    def unexpired(self) -> Caller:
        """Return this caller.

        Raises:
            Unauthorized: The key has expired.
        """
        if self.expired:
            raise Unauthorized("the API key has expired")
        return self


class Keys:
    """The configured API keys."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._by_digest = {key.sha256: key for key in settings.keys}
        self._anonymous = (
            Caller(settings.keyless_tenant, settings.keyless_user) if settings.serves_without_key else None
        )

    @property
    def keyless(self) -> bool:
        """Whether requests without a key are served."""
        return self._anonymous is not None

    def known(self, token: str) -> bool:
        """Return whether a token is one of the configured keys."""
        return digest(token.encode()) in self._by_digest

    def caller(self, token: str | None) -> Caller:
        """Return the caller that a token belongs to.

        In keyless mode an unknown token is accepted too: clients of model APIs always send a dummy key.

        Raises:
            Unauthorized: The token is missing, unknown or expired.
        """
        key = self._by_digest.get(digest(token.encode())) if token else None
        if key is not None:
            return _caller(key).unexpired()
        if self._anonymous is not None:
            return self._anonymous
        raise Unauthorized("the API key is wrong" if token else "an API key is needed")


def _caller(key: ApiKey) -> Caller:
    return Caller(key.tenant, key.user, frozenset(key.modes), key.may_approve, key.expires_at)


def bearer(authorization: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer` header; None for any other header or none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
