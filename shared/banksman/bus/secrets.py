"""Encryption of stored data (objects that all runners can read, secrets of tenants), and call tickets.

The process that sends a call decrypts the secrets of its tenant. Only the request to the process that
executes the call contains them: no event, log line or model request does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from nacl.exceptions import CryptoError
from nacl.secret import Aead
from nacl.utils import random
from pydantic import BaseModel, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.names import SECRETS, TENANT_SECRETS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.calls import CallProgress, CallRequest
from banksman.contracts.errors import Fault, NotReady
from banksman.contracts.mcp import McpTransport
from banksman.contracts.tools import MCP_PREFIX, REFERENCE, StoredSecret

SEAL_BYTES: Final = Aead.NONCE_SIZE + Aead.MACBYTES
"""Bytes by which a sealed object is longer than its content."""

SEALED: Final = "sealed:"
"""Prefix of an encrypted value in a stored MCP server."""

TICKETS_KEY = "call-tickets"
_CODE_CHARS = 32


def new_key() -> str:
    """Return a random key in hexadecimal, for one snapshot or output."""
    return random(Aead.KEY_SIZE).hex()


def sealed(content: bytes, key: str, name: str) -> bytes:
    """Return the encrypted content of an object, bound to its name."""
    return bytes(Aead(bytes.fromhex(key)).encrypt(content, name.encode()))


def opened(data: bytes, key: str, name: str) -> bytes | None:
    """Return the content of a sealed object; None if the key, the name or the bytes do not match."""
    try:
        return Aead(bytes.fromhex(key)).decrypt(data, name.encode())
    except CryptoError:
        return None


class SecretBox:
    """Encrypts secrets of tenants with a key derived from the signing key, which is in no store."""

    def __init__(self, signing_key: bytes) -> None:
        """Create the box of a service; an empty key seals and opens nothing."""
        self._key = hmac.digest(signing_key, b"tenant-secrets", "sha256").hex() if signing_key else None

    def seal(self, value: str, name: str) -> str:
        """Return an encrypted value in base64, bound to its name. The box must have a key."""
        assert self._key is not None
        return base64.b64encode(sealed(value.encode(), self._key, name)).decode()

    def open(self, text: str, name: str) -> str | None:
        """Return the decrypted value; None without a key, or if it was sealed with another key or name."""
        if self._key is None:
            return None
        content = opened(base64.b64decode(text), self._key, name)
        return None if content is None else content.decode()


class SecretUnusable(Fault):
    """A secret is not set, or cannot be used."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"the secret {name!r} {problem}")


@dataclass(frozen=True, slots=True)
class ResolvedTransport:
    """The transport of an MCP server with all secrets filled in."""

    transport: McpTransport
    hidden: tuple[str, ...]
    """The values of the secrets that the transport refers to, to be redacted from output."""


class TenantSecrets:
    def __init__(self, bus: Bus, box: SecretBox) -> None:
        self._bucket = Bucket(bus, TENANT_SECRETS, StoredSecret)
        self._box = box

    async def values(self, tenant: str, names: Iterable[str], server: str) -> dict[str, str]:
        """Return the values of secrets by name, for a tool server, or for the MCP server `mcp:{id}`.

        Raises:
            SecretUnusable: A secret is not set, was encrypted with another key, or is for other servers only.
        """
        return {name: await self._value(tenant, name, server) for name in names}

    async def resolved(self, tenant: str, server_id: str, transport: McpTransport) -> ResolvedTransport:
        """Return the transport of an MCP server, with its own values decrypted and references filled in.

        Raises:
            SecretUnusable: A secret is not set, was encrypted with another key, is for other servers only, or
                makes the value invalid.
        """
        own = {name: self._opened(tenant, server_id, name, value) for name, value in transport.values.items()}
        wanted = {name for value in own.values() for name in REFERENCE.findall(value)}
        found = await self.values(tenant, sorted(wanted), f"{MCP_PREFIX}{server_id}")
        filled = {
            name: REFERENCE.sub(lambda reference: found[reference[1]], value) for name, value in own.items()
        }
        try:
            return ResolvedTransport(transport.with_values(filled), tuple(found.values()))
        except ValidationError:
            # `from None`, because the validation error shows the secret value.
            raise SecretUnusable(", ".join(found), "makes a value of the server invalid") from None

    async def _value(self, tenant: str, name: str, server: str) -> str:
        key = f"{tenant}.{name}"
        entry = await self._bucket.get(key)
        if entry is None:
            raise SecretUnusable(name, "is not set: `banksman secrets set` sets it")
        if entry.value.servers is not None and server not in entry.value.servers:
            raise SecretUnusable(name, f"is not for the server {server!r}: an administrator named others")
        value = self._box.open(entry.value.sealed, key)
        if value is None:
            raise SecretUnusable(name, "was encrypted with another signing key: set it again")
        return value

    def _opened(self, tenant: str, server_id: str, name: str, value: str) -> str:
        opened = self._box.open(value.removeprefix(SEALED), sealed_name(tenant, server_id, name))
        if opened is None:
            raise SecretUnusable(name, f"of server {server_id!r} was encrypted with another signing key")
        return opened


def sealed_transport(tenant: str, server_id: str, transport: McpTransport, box: SecretBox) -> McpTransport:
    """Return a transport with its values encrypted for storage."""
    values = {
        name: SEALED + box.seal(value, sealed_name(tenant, server_id, name))
        for name, value in transport.values.items()
    }
    return transport.with_values(values)


def sealed_name(tenant: str, server_id: str, name: str) -> str:
    """Return the name to which the encrypted value of a header or an environment variable is bound."""
    return f"{tenant}.{server_id}.{name}"


class _TicketSecret(BaseModel):
    secret: str


class CallTickets:
    """Proof that a call was sent to this runner or tool server.

    The owner of a run adds a ticket to each call request. An agent stores the start and the result of the
    call only with this ticket. A ticket is an HMAC over tenant, attempt and holder, so nothing is stored for
    it. Its secret is in KV `secrets`, which agents and the workflows service may read.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    async def load(cls, bus: Bus) -> Self:
        """Return the tickets of this deployment; raise `NotReady` if the secret is missing."""
        entry = await Bucket(bus, SECRETS, _TicketSecret).get(TICKETS_KEY)
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


def output_ticket(signing_key: bytes, tenant: str, request: CallRequest | CallProgress, holder: str) -> str:
    """Return the code that live output of a call must repeat, for the process that executes the call.

    Gateways check it. They have the signing key, and not the secret of `CallTickets`.
    """
    call_id = request.call.id if isinstance(request, CallRequest) else request.tool_call_id
    text = ".".join(("live-output", tenant, request.conversation_id, request.run_id, call_id, holder))
    return hmac.new(signing_key, text.encode(), hashlib.sha256).hexdigest()[:_CODE_CHARS]


def is_of_holder(progress: CallProgress, signing_key: bytes, tenant: str) -> bool:
    """Return whether live output is of the process to which the call was sent."""
    genuine = output_ticket(signing_key, tenant, progress, progress.runner)
    return hmac.compare_digest((progress.ticket or "").encode(), genuine.encode())


async def create_ticket_secret(bus: Bus) -> None:
    """Store a random ticket secret unless one exists."""
    await Bucket(bus, SECRETS, _TicketSecret).create(TICKETS_KEY, _TicketSecret(secret=secrets.token_hex(32)))
