"""A bound of what a server sends before its response, for all clients of aiohttp in this process.

aiohttp 3.14 reads interim responses (1xx) without a limit, which keeps the event loop busy for as long as a
server sends them, and each of them ends the read timeout. Neither is a setting. This module overrides
`ResponseHandler.data_received` and `feed_data`, uses its `transport`, `set_exception` and
`_reschedule_timeout`, and replaces the name `ResponseHandler` in `aiohttp.connector`.
"""

from __future__ import annotations

from typing import Any

from aiohttp import connector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

MAX_INTERIM = 16
"""Interim responses before one response. Servers send `100`, `102` or `103` once or twice."""
_SWITCHED = 101


class _BoundedHandler(ResponseHandler):
    """Drops interim responses, which no client here awaits, and ends a connection after `MAX_INTERIM`."""

    _interim = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if 0 < self._interim <= MAX_INTERIM:
            self._reschedule_timeout()

    def feed_data(self, data: Any, size: int = 0) -> None:
        code = data[0].code
        if self._interim > MAX_INTERIM:
            return
        if code >= 200 or code == _SWITCHED:
            self._interim = 0
            super().feed_data(data, size)
            return
        self._interim += 1
        if self._interim > MAX_INTERIM:
            if self.transport is not None:
                self.transport.close()
            message = f"more than {MAX_INTERIM} interim responses"
            self.set_exception(HttpProcessingError(code=502, message=message))


def bound_interim_responses() -> None:
    """Apply the bound to connections that this process opens from now on; a repetition changes nothing."""
    connector.ResponseHandler = _BoundedHandler  # pyright: ignore[reportPrivateImportUsage] - see the module
