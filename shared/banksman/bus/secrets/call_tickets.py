"""Call tickets: proof that a call was sent to this runner or tool server.

The owner of a run adds a ticket to each call request. An agent stores the start and the result of the call
only with this ticket. A ticket is an HMAC over tenant, attempt and holder, so nothing is stored for it. Its
secret is in KV `secrets`, which agents and the workflows service may read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Self

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.names import SECRETS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import NotReady

_KEY = "call-tickets"
_CODE_CHARS = 32


class _Secret(BaseModel):
    secret: str


class CallTickets:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    async def load(cls, bus: Bus) -> Self:
        """Return the tickets of this deployment; raise `NotReady` if the secret is missing."""
        entry = await Bucket(bus, SECRETS, _Secret).get(_KEY)
        if entry is None:
            raise NotReady("KV_secrets has no secret of tickets: `banksman streams provision` creates it")
        return cls(entry.value.secret.encode())

    def issue(self, tenant: str, attempt: str, holder: str) -> str:
        """Return the ticket of an attempt for the process that executes it: `{holder}.{code}`."""
        code = hmac.new(self._secret, f"{tenant}.{attempt}.{holder}".encode(), hashlib.sha256).hexdigest()
        return f"{holder}.{code[:_CODE_CHARS]}"

    def holder(self, ticket: str, tenant: str, attempt: str) -> str | None:
        """Return the holder named in a ticket; None if the ticket is not valid for this attempt."""
        holder = ticket.partition(".")[0]
        genuine = self.issue(tenant, attempt, holder)
        return holder if hmac.compare_digest(ticket.encode(), genuine.encode()) else None


async def create_ticket_secret(bus: Bus) -> None:
    """Store a random ticket secret unless one exists."""
    await Bucket(bus, SECRETS, _Secret).create(_KEY, _Secret(secret=secrets.token_hex(32)))
