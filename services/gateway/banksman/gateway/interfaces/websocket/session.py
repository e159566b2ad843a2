"""The caller of a websocket: authentication by `hello`, refreshed tokens, expiry and revocation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from banksman.contracts.errors import BanksmanError, Refused, Unauthorized
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.websocket.transport import (
    FORBIDDEN,
    INTERNAL_ERROR,
    RATE_LIMITED,
    UNAUTHENTICATED,
)
from banksman.gateway.operation.caller import READ, Caller

EXPIRED = "the token has expired"
SOCKET_BYTES, USER_BYTES, TENANT_BYTES = 4 * 1024 * 1024, 8 * 1024 * 1024, 16 * 1024 * 1024
"""Maximum memory of the requests of one websocket, user and tenant that are not handled yet."""


@dataclass(frozen=True, slots=True)
class CallerSockets:
    """The number of greeted websockets of each caller, and the memory of their requests."""

    limit: int
    _open: Counter[tuple[str, str]] = field(default_factory=lambda: Counter[tuple[str, str]]())
    _held: Counter[tuple[str, ...]] = field(default_factory=lambda: Counter[tuple[str, ...]]())
    """Bytes by tenant and user, and by tenant."""

    def add(self, caller: Caller) -> bool:
        """Count a websocket; return False at the limit."""
        if self._open[caller.tenant, caller.user] >= self.limit:
            return False
        self._open[caller.tenant, caller.user] += 1
        return True

    def remove(self, caller: Caller) -> None:
        self._open[caller.tenant, caller.user] -= 1
        if not self._open[caller.tenant, caller.user]:
            del self._open[caller.tenant, caller.user]

    def hold(self, caller: Caller, size: int) -> bool:
        """Count the bytes of a request; return False at the limit of the user or the tenant."""
        of_user, of_tenant = self._held[caller.tenant, caller.user], self._held[(caller.tenant,)]
        if of_user + size > USER_BYTES or of_tenant + size > TENANT_BYTES:
            return False
        self.release(caller, -size)
        return True

    def release(self, caller: Caller, size: int) -> None:
        for key in ((caller.tenant, caller.user), (caller.tenant,)):
            self._held[key] -= size
            if not self._held[key]:
                del self._held[key]


@dataclass(eq=False, slots=True)
class CallerSession:
    """The caller of one websocket. A failed authentication closes the websocket."""

    keys: Keys
    sockets: CallerSockets
    upgrade_caller: Caller | None
    end: Callable[[int, str], None]
    """Closes the websocket with a code and a reason."""
    caller: Caller | None = None
    """The authenticated caller; None until `greet` succeeds."""
    _counted: Caller | None = None
    """The caller for whom this websocket is counted."""
    _held: int = 0
    """Bytes of the requests that are not handled yet."""
    _expiry: asyncio.TimerHandle | None = None
    """Closes the websocket when the caller's key expires."""

    def greet(self, token: str | None) -> bool:
        """Authenticate by the token of `hello`, or as the upgrade's caller; return whether that succeeded."""
        known = self.upgrade_caller
        try:
            caller = known if known and not token else self.keys.caller(token)
            caller.check("context")
            caller.need(*READ)
        except BanksmanError as error:
            self.end(_refusal_code(error), str(error))
            return False
        if not self.sockets.add(caller):
            self.end(RATE_LIMITED, f"more than {self.sockets.limit} websockets of one user")
            return False
        self._counted = caller
        self._set_caller(caller)
        return True

    def refresh(self, token: str | None, caller: Caller) -> bool:
        """Continue with another token of the caller's tenant; return whether it is valid."""
        try:
            fresh = self.keys.caller(token)
        except Unauthorized as error:
            self.end(UNAUTHENTICATED, str(error))
            return False
        if fresh.tenant != caller.tenant:
            self.end(FORBIDDEN, "the token belongs to another tenant")
            return False
        self._set_caller(fresh)
        return True

    def has_expired(self) -> bool:
        """Close the websocket if the caller's key has expired; return whether it has."""
        expired = self.caller is not None and self.caller.expired
        if expired:
            self.end(UNAUTHENTICATED, EXPIRED)
        return expired

    def hold(self, size: int) -> bool:
        """Count the bytes of a request until `release`; return False at a limit."""
        if self._counted is None or self._held + size > SOCKET_BYTES:
            return False
        held = self.sockets.hold(self._counted, size)
        self._held += size if held else 0
        return held

    def release(self, size: int) -> None:
        if self._counted is not None:
            self._held -= size
            self.sockets.release(self._counted, size)

    def revoke(self, key: str) -> None:
        if self.caller is not None and self.caller.key == key:
            self.end(UNAUTHENTICATED, "the key was revoked")

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.release(self._held)
        if self._counted is not None:
            self.sockets.remove(self._counted)

    def _set_caller(self, caller: Caller) -> None:
        self.caller = replace(caller, interface="websocket")
        if self._expiry is not None:
            self._expiry.cancel()
        if (remaining_s := caller.remaining_s) is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(remaining_s, self.end, UNAUTHENTICATED, EXPIRED)


def _refusal_code(error: BanksmanError) -> int:
    match error:
        case Unauthorized():
            return UNAUTHENTICATED
        case Refused():
            # After this close code the client reconnects with the same token, which may be valid.
            return INTERNAL_ERROR
        case _:
            return FORBIDDEN
