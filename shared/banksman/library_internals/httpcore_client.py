"""A bound of what a server sends besides the content of its response, for the clients of httpcore.

httpcore 1.0 and httpcore2 2.16 read interim responses (1xx), chunks of one byte and the extensions of chunks
without a limit, and parse 64 KiB of them before the event loop runs again. Neither is a setting. This module
replaces the parser of a connection, `AsyncHTTP11Connection._h11_state`, by one that counts, and overrides
`READ_NUM_BYTES`. httpx and httpx2 use these connections.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import h11

MAX_FRAMING_BYTES = 64 * 1024
"""Bytes of interim responses, head, sizes of chunks and trailers, beyond as many as the content has."""
READ_BYTES = 8 * 1024
"""Bytes that are parsed at once: 1,400 chunks of one byte take 0.07 s."""


class _BoundedParser(h11.Connection):
    """Refuses a response that consists mostly of framing."""

    _excess = 0
    """The received bytes, minus twice those of the content."""

    def receive_data(self, data: bytes) -> None:
        self._excess += len(data)
        super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._excess -= 2 * len(event.data)
        elif event is h11.NEED_DATA and self._excess > MAX_FRAMING_BYTES:
            raise h11.RemoteProtocolError(
                f"the server sent more than {MAX_FRAMING_BYTES} bytes besides content"
            )
        return event

    def start_next_cycle(self) -> None:
        self._excess = 0
        super().start_next_cycle()


def bound_responses(library: Literal["httpcore", "httpcore2"]) -> None:
    """Apply the bound to connections that this process opens from now on; a repetition changes nothing."""
    connection: Any = import_module(f"{library}._async.http11").AsyncHTTP11Connection
    if connection.READ_NUM_BYTES == READ_BYTES:
        return
    prepare = connection.__init__

    def bounded(self: Any, *args: Any, **named: Any) -> None:
        prepare(self, *args, **named)
        self._h11_state = _BoundedParser(h11.CLIENT, connection.MAX_INCOMPLETE_EVENT_SIZE)

    connection.READ_NUM_BYTES = READ_BYTES
    connection.__init__ = bounded
