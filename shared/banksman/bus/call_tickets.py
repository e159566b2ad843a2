"""Tickets of calls: the proof of a runner or tool server that it was sent a call.

The owner of a run adds a ticket to each request for a call. An agent stores the start and the result of the
call only with this ticket. It is a code over tenant, attempt and holder under a secret in KV `secrets`, which
agents and the workflows service may read, so nothing is stored for a ticket.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Self

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import SECRETS
from banksman.contracts.errors import NotReady

_KEY = "call-tickets"
_CODE_CHARS = 32


class _Secret(BaseModel):
    secret: str


class CallTickets:
    """Issues and checks tickets."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    async def load(cls, bus: Bus) -> Self:
        """Return the tickets of this deployment.

        Raises:
            NotReady: The secret is missing.
            Unavailable: The broker did not respond.
        """
        entry = await Bucket(bus, SECRETS, _Secret).get(_KEY)
        if entry is None:
            raise NotReady("KV_secrets has no secret of tickets: `banksman streams provision` creates it")
        return cls(entry.value.secret.encode())

    def issue(self, tenant: str, attempt: str, holder: str) -> str:
        """Return the ticket of an attempt for the process that executes it: `{holder}.{code}`."""
        code = hmac.new(self._secret, f"{tenant}.{attempt}.{holder}".encode(), hashlib.sha256).hexdigest()
        return f"{holder}.{code[:_CODE_CHARS]}"

    def holder(self, ticket: str, tenant: str, attempt: str) -> str | None:
        """Return whose ticket for this attempt it is; None if it is not one for this attempt."""
        holder = ticket.partition(".")[0]
        genuine = self.issue(tenant, attempt, holder)
        return holder if hmac.compare_digest(ticket.encode(), genuine.encode()) else None


async def create_ticket_secret(bus: Bus) -> None:
    """Store a random secret unless there is one.

    Raises:
        Overloaded, Unavailable, Forbidden: As `durable`.
    """
    await Bucket(bus, SECRETS, _Secret).create(_KEY, _Secret(secret=secrets.token_hex(32)))
