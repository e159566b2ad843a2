"""The caller of a websocket: authentication by `hello`, refreshed tokens, expiry and revocation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class CallerSockets:
    """The number of greeted websockets of each caller."""

    limit: int
    _open: Counter[tuple[str, str]] = field(default_factory=lambda: Counter[tuple[str, str]]())

    def add(self, caller: Caller) -> bool:
        """Count a websocket; return False if the caller has reached the limit."""
        if self._open[caller.tenant, caller.user] >= self.limit:
            return False
        self._open[caller.tenant, caller.user] += 1
        return True

    def remove(self, caller: Caller) -> None:
        self._open[caller.tenant, caller.user] -= 1
        if not self._open[caller.tenant, caller.user]:
            del self._open[caller.tenant, caller.user]


class CallerSession:
    """The caller of one websocket. A failed authentication closes the websocket."""

    __slots__ = ("_counted", "_end", "_expiry", "_keys", "_sockets", "_upgrade_caller", "caller")

    def __init__(
        self, keys: Keys, sockets: CallerSockets, caller: Caller | None, end: Callable[[int, str], None]
    ) -> None:
        """`end` closes the websocket with a code and a reason; `caller` is the one of the upgrade, if any."""
        self.caller: Caller | None = None
        """The authenticated caller; None until `greet` succeeds."""
        self._keys = keys
        self._sockets = sockets
        self._upgrade_caller = caller
        self._end = end
        self._counted: Caller | None = None
        """The caller for whom this websocket is counted."""
        self._expiry: asyncio.TimerHandle | None = None
        """Closes the websocket when the caller's key expires."""

    def greet(self, token: str | None) -> bool:
        """Authenticate by the token of `hello`, or as the upgrade's caller; return whether that succeeded."""
        known = self._upgrade_caller
        try:
            caller = known if known and not token else self._keys.caller(token)
            caller.check("context")
            caller.need(*READ)
        except BanksmanError as error:
            self._end(_refusal_code(error), str(error))
            return False
        if not self._sockets.add(caller):
            self._end(RATE_LIMITED, f"more than {self._sockets.limit} websockets of one user")
            return False
        self._counted = caller
        self._set_caller(caller)
        return True

    def refresh(self, token: str | None, caller: Caller) -> bool:
        """Continue with another token of the caller's tenant; return whether it is valid."""
        try:
            fresh = self._keys.caller(token)
        except Unauthorized as error:
            self._end(UNAUTHENTICATED, str(error))
            return False
        if fresh.tenant != caller.tenant:
            self._end(FORBIDDEN, "the token belongs to another tenant")
            return False
        self._set_caller(fresh)
        return True

    def has_expired(self) -> bool:
        """Close the websocket if the caller's key has expired; return whether it has."""
        expired = self.caller is not None and self.caller.expired
        if expired:
            self._end(UNAUTHENTICATED, EXPIRED)
        return expired

    def revoke(self, key: str) -> None:
        """Close the websocket if its caller uses the key with this SHA-256."""
        if self.caller is not None and self.caller.key == key:
            self._end(UNAUTHENTICATED, "the key was revoked")

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        if self._counted is not None:
            self._sockets.remove(self._counted)

    def _set_caller(self, caller: Caller) -> None:
        self.caller = caller
        if self._expiry is not None:
            self._expiry.cancel()
        if (remaining_s := caller.remaining_s) is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(remaining_s, self._end, UNAUTHENTICATED, EXPIRED)


def _refusal_code(error: BanksmanError) -> int:
    match error:
        case Unauthorized():
            return UNAUTHENTICATED
        case Refused():
            # After this close code the client reconnects with the same token, which may be valid.
            return INTERNAL_ERROR
        case _:
            return FORBIDDEN
