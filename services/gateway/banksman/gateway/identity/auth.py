"""Identify callers: API keys, tokens of an OIDC provider, keyless mode, and tickets.

A single-use ticket authenticates a websocket in its URL, in place of a long-lived token.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import BadInput, Conflict, Unauthorized, Unavailable
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored, Timestamp, Token
from banksman.gateway.operation.caller import ALL_RIGHTS, Caller
from banksman.gateway.settings import ApiKey, GatewaySettings, Mode, Right
from banksman.runs.ports import Clock
from banksman.runtime.key_file import Key, update_keys

logger = logging.getLogger(__name__)

_KEYS = TypeAdapter(tuple[ApiKey, ...])
TICKET_S = 30


class TokenVerifier(Protocol):
    async def prepare(self, token: str | None) -> None:
        """Fetch what the verification of a token needs. Never raises an error."""
        ...

    def known(self, token: str) -> bool: ...

    def caller(self, token: str) -> Caller | None:
        """Return the caller of a token; None if it is of another kind.

        Raises:
            Unauthorized: The token is not for this gateway, or has expired.
            Forbidden: The token names no tenant.
            Unavailable: Tokens cannot be verified yet.
        """
        ...


class Keys:
    """The API keys of the settings and of the file that they name."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._configured = {key.sha256: key for key in settings.keys}
        self.tokens: TokenVerifier | None = None
        """Verifies the tokens of the OIDC provider; None without one."""
        self._file = settings.keys_file
        self._version: tuple[int, int] | None = None
        """Inode and modification time of the file when it was last read; None if there was no file."""
        self._stored: Mapping[str, ApiKey] = {}
        self._readable = True
        self.created: Mapping[str, ApiKey] = {}
        """The keys that clients created, by their SHA-256. They have no influence on keyless mode: until the
        gateway has read them from NATS, it would serve without a key."""
        self._anonymous = (
            Caller(settings.keyless_tenant, settings.keyless_user, rights=ALL_RIGHTS)
            if settings.serves_without_key
            else None
        )
        self._always_keyless = settings.keyless is True

    @property
    def keyless(self) -> bool:
        if self._anonymous is None or self._always_keyless:
            return self._anonymous is not None
        self._refresh()
        # An unreadable file may contain keys: without this check, a damaged file would open the gateway.
        return not self._configured and not self._stored and self._readable

    def write_first(self, key: ApiKey) -> None:
        """Write the first key to the file of keys: from now on each request needs a key."""
        if self._file is None or self._always_keyless:
            raise Conflict(
                "this gateway needs no key: BANKSMAN_GATEWAY__KEYS_FILE names a file for the first one"
            )

        def add(keys: list[Key]) -> list[Key]:
            if keys:
                raise Conflict("another client created the first key")
            return [key.model_dump(mode="json")]

        try:
            update_keys(self._file, add)
        except OSError as error:
            raise Unavailable(f"the file of keys cannot be written: {error.strerror}") from error
        except BadInput as error:
            raise Unavailable("the file of keys cannot be read") from error

    def is_configured(self, key: str) -> bool:
        """Return whether the settings or the file of keys contain the key with this SHA-256."""
        self._refresh()
        return key in self._configured or key in self._stored

    def known(self, token: str) -> bool:
        return self._find(token) is not None or (self.tokens is not None and self.tokens.known(token))

    def by_tenant(self) -> Counter[str]:
        """Return the number of accepted keys by tenant, without expired ones."""
        return Counter(key.tenant for key in self._known() if not _caller(key).expired)

    def may_return(self, tenant: str, user: str) -> bool:
        """Return whether a user has a key, or may have a token of the OIDC provider."""
        return self.tokens is not None or any(
            (key.tenant, key.user) == (tenant, user) for key in self._known()
        )

    def _known(self) -> Iterable[ApiKey]:
        self._refresh()
        return {**self.created, **self._stored, **self._configured}.values()

    def may_approve(self, key: str | None, tenant: str) -> bool:
        """Return whether a user may still approve.

        Args:
            key: SHA-256 of the key with which the user signed in. None for a user without a key, who may
                approve in keyless mode or with an OIDC provider: the rights of past tokens are not known.
        """
        if key is None:
            return self.keyless or self.tokens is not None
        found = self._by_digest(key)
        if found is None or found.tenant != tenant:
            return False
        caller = _caller(found)
        return caller.may_approve and not caller.expired

    async def prepare(self, token: str | None) -> None:
        if self.tokens is not None:
            await self.tokens.prepare(token)

    def _find(self, token: str) -> ApiKey | None:
        return self._by_digest(digest(token.encode()))

    def _by_digest(self, key: str) -> ApiKey | None:
        self._refresh()
        return self._configured.get(key) or self._stored.get(key) or self.created.get(key)

    def _refresh(self) -> None:
        if self._file is not None and (version := _version(self._file)) != self._version:
            self._version = version
            self._read(self._file)

    def _read(self, file: Path) -> None:
        """Read the keys of the file; if it cannot be read, the earlier keys remain valid."""
        try:
            self._stored = {key.sha256: key for key in _KEYS.validate_json(file.read_bytes())}
            self._readable = True
        except FileNotFoundError:
            self._stored, self._readable = {}, True
        except (OSError, ValidationError):
            self._readable = False
            logger.exception("the file of API keys cannot be read", extra={"file": str(file)})

    def caller(self, token: str | None) -> Caller:
        """Return the caller that a token belongs to.

        In keyless mode an unknown token is accepted too: clients of model APIs always send a dummy key.

        Raises:
            Unauthorized: The token is missing, unknown or expired.
            Forbidden: A token of the OIDC provider names no tenant.
            Unavailable: The OIDC provider's keys have not been read yet.
        """
        key = self._find(token) if token else None
        if key is not None:
            return _caller(key).unexpired()
        if token and self.tokens is not None and (found := self.tokens.caller(token)) is not None:
            return found
        if self._anonymous is not None and self.keyless:
            return self._anonymous
        raise Unauthorized("the API key is wrong" if token else "an API key is needed")


def _version(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _caller(key: ApiKey) -> Caller:
    rights = frozenset(key.rights) - (frozenset() if key.may_approve else {"approve"})
    return Caller(key.tenant, key.user, frozenset(key.modes), rights, key.expires_at, key.sha256)


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
        await self._bucket.put(_ticket_key(text), ticket)
        return text

    async def redeem(self, text: str) -> Caller:
        """Delete a ticket and return its caller; `Unauthorized` if it is unknown, used or expired."""
        entry = await self._bucket.get(_ticket_key(text))
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


def _ticket_key(text: str) -> str:
    # The keys of request ids have two tokens, so the one token of a ticket never collides with them.
    return digest(f"ticket:{text}".encode())
