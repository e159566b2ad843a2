"""Who is calling: keys, keyless mode, and single-use tickets for websockets."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import IDEMPOTENCY
from banksman.contracts.errors import Forbidden, Unauthorized
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.settings import ApiKey, GatewaySettings, Mode
from banksman.runs.ports import Clock

ALL_MODES: frozenset[Mode] = frozenset(("context", "passthrough"))
TICKET_S = 30


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose identity is known."""

    tenant: str
    user: str
    modes: frozenset[Mode] = ALL_MODES
    may_approve: bool = True
    expires_at: datetime | None = None

    def check(self, mode: Mode) -> None:
        """Refuse what the key is not for.

        Raises:
            Forbidden: naming the mode.
        """
        if mode not in self.modes:
            raise Forbidden(f"this key may not use {mode} endpoints")

    @property
    def left_s(self) -> float | None:
        """Seconds until the key's time is over; None for one that never expires."""
        return None if self.expires_at is None else (self.expires_at - datetime.now(UTC)).total_seconds()

    @property
    def expired(self) -> bool:
        """Whether the key's time is over."""
        return self.left_s is not None and self.left_s <= 0


class Keys:
    """The keys of all clients."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._by_digest = {key.sha256: key for key in settings.keys}
        self._anybody = (
            Caller(settings.keyless_tenant, settings.keyless_user) if settings.accepts_anybody else None
        )

    @property
    def keyless(self) -> bool:
        """Whether a key is not needed."""
        return self._anybody is not None

    def caller(self, token: str | None) -> Caller:
        """Who holds a token.

        Raises:
            Unauthorized: it is missing, wrong or expired.
        """
        key = self._by_digest.get(hashlib.sha256(token.encode()).hexdigest()) if token else None
        if key is not None:
            return _live(_caller(key))
        if self._anybody is not None:
            return self._anybody
        raise Unauthorized("the API key is wrong" if token else "an API key is needed")


def _caller(key: ApiKey) -> Caller:
    return Caller(key.tenant, key.user, frozenset(key.modes), key.may_approve, key.expires_at)


def _live(caller: Caller) -> Caller:
    if caller.expired:
        raise Unauthorized("the API key has expired")
    return caller


def bearer(authorization: str | None) -> str | None:
    """The token of an `Authorization` header; None when there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class Ticket(Stored):
    """What a ticket stands for, under the digest of its text."""

    tenant: Token
    user: str
    modes: tuple[Mode, ...]
    may_approve: bool
    caller_expires_at: Timestamp | None
    expires_at: Timestamp


class Tickets:
    """Tickets that open one websocket each, at any replica, for 30 seconds."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = Bucket(bus, IDEMPOTENCY, Ticket)
        self._clock = clock

    async def issue(self, caller: Caller) -> str:
        """A new ticket for a caller."""
        text = secrets.token_urlsafe(24)
        ticket = Ticket(
            tenant=caller.tenant,
            user=caller.user,
            modes=tuple(caller.modes),
            may_approve=caller.may_approve,
            caller_expires_at=caller.expires_at,
            expires_at=self._clock.now() + timedelta(seconds=TICKET_S),
        )
        await self._bucket.put(_key(text), ticket)
        return text

    async def redeem(self, text: str) -> Caller:
        """Who a ticket was issued to; it is used up.

        Raises:
            Unauthorized: unknown, used or too old.
        """
        entry = await self._bucket.get(_key(text))
        if entry is None or not await self._bucket.delete(entry.key, revision=entry.revision):
            raise Unauthorized("the ticket is unknown or used")
        ticket = entry.value
        if ticket.expires_at < self._clock.now():
            raise Unauthorized("the ticket is too old")
        return _live(
            Caller(
                ticket.tenant,
                ticket.user,
                frozenset(ticket.modes),
                ticket.may_approve,
                ticket.caller_expires_at,
            )
        )


def _key(text: str) -> str:
    # Requests of clients are kept under two tokens, so a ticket's single one never meets them.
    return digest(f"ticket:{text}".encode())
