"""Single-use tickets that authenticate a websocket in its URL, in place of a long-lived token."""

from __future__ import annotations

import secrets
from datetime import timedelta

from banksman.bus.connection import Bus
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import Unauthorized
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.identity_settings import Mode, Right
from banksman.gateway.operation.caller import Caller
from banksman.runs.ports import Clock

TICKET_S = 30


class Ticket(Stored):
    """The caller of a ticket, stored under the digest of the ticket's text."""

    tenant: Token
    user: str
    modes: tuple[Mode, ...]
    rights: tuple[Right, ...]
    key: str | None = None
    """SHA-256 of the caller's key."""
    caller_expires_at: Timestamp | None
    expires_at: Timestamp


class Tickets:
    """Issues tickets; each opens one websocket, at any replica, for 30 seconds."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bucket = Bucket(bus, IDEMPOTENCY, Ticket)
        self._clock = clock

    async def issue(self, caller: Caller) -> str:
        text = secrets.token_urlsafe(24)
        ticket = Ticket(
            tenant=caller.tenant,
            user=caller.user,
            modes=tuple(caller.modes),
            rights=tuple(caller.rights),
            key=caller.key,
            caller_expires_at=caller.expires_at,
            expires_at=self._clock.now() + timedelta(seconds=TICKET_S),
        )
        await self._bucket.put(_key(text), ticket)
        return text

    async def redeem(self, text: str) -> Caller:
        """Delete a ticket and return its caller; `Unauthorized` if it is unknown, used or expired."""
        entry = await self._bucket.get(_key(text))
        # If two websockets use the same ticket, only one can delete this revision.
        if entry is None or not await self._bucket.delete(entry.key, revision=entry.revision):
            raise Unauthorized("the ticket is unknown or used")
        ticket = entry.value
        if ticket.expires_at < self._clock.now():
            raise Unauthorized("the ticket has expired")
        return Caller(
            ticket.tenant,
            ticket.user,
            frozenset(ticket.modes),
            frozenset(ticket.rights),
            ticket.caller_expires_at,
            ticket.key,
        ).unexpired()


def _key(text: str) -> str:
    # The keys of request ids have two tokens, so the one token of a ticket never collides with them.
    return digest(f"ticket:{text}".encode())
