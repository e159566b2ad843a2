"""uvicorn's websocket protocol, with bounds for clients that do not read or do not finish a message.

uvicorn limits the size of a message, but neither the time that a client takes to send it, nor the bytes of
the unfinished messages of all clients. This module overrides methods of `WebSocketsSansIOProtocol` of uvicorn
0.54 (`connection_made`, `data_received`, `handle_cont`, `send_receive_event_to_app`, `connection_lost`,
`keepalive_timeout`, `send`). It reads `frames`, `conn`, `transport`, `client`, `loop`, `close_sent`,
`handshake_complete` and `writable` of the protocol, and `reader.buffer` of the parser of websockets 17.
It replaces `app_state`, which the application receives as `scope["state"]`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar, cast

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from banksman.library_internals.uvicorn_connections import ADMITTED, AdmittedConnection, OpenConnections

ABORT_S = 15.0
"""Seconds after the close frame until the connection to a client that reads nothing is aborted."""


@dataclass
class UnfinishedMessages:
    """The incomplete messages of all websockets of a process."""

    timeout_s: float
    """Maximum seconds of one message, after which its websocket is closed."""
    max_bytes: int
    """Maximum bytes of all incomplete messages; above it, the websockets of the oldest ones are closed."""
    timed_out_code: int
    crowded_code: int
    """Close codes of the two cases."""
    _sizes: dict[SocketProtocol, int] = field(default_factory=lambda: dict[SocketProtocol, int]())
    """By websocket, in the order in which the messages began."""
    _total: int = 0

    def set(self, socket: SocketProtocol, size: int) -> None:
        """Set the size of the unfinished message of a websocket; 0 for none."""
        self._total += size - self._sizes.get(socket, 0)
        if size:
            self._sizes[socket] = size
        else:
            self._sizes.pop(socket, None)
        while self._total > self.max_bytes:
            # A message normally arrives within milliseconds: clients withhold the rest of the oldest ones.
            next(iter(self._sizes)).fail(self.crowded_code, "too many unfinished messages")


class SocketProtocol(WebSocketsSansIOProtocol):
    """Closes the websocket of a client that does not finish a message in time.

    Sends a close frame even if the client does not read, and aborts the connection after 15 seconds.
    """

    unfinished: ClassVar[UnfinishedMessages]
    connections_of_listener: ClassVar[OpenConnections]
    _admitted: AdmittedConnection | None = None
    _deadline: asyncio.TimerHandle | None = None
    """Closes the websocket if the current message is not finished in time."""
    _abort: asyncio.TimerHandle | None = None
    """Aborts the connection after the close frame."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the place that the HTTP protocol of the connection has just left."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        self._admitted = self.connections_of_listener.enter(self, address)
        self.app_state = {**self.app_state, ADMITTED: self._admitted}

    def refuse(self, status: bytes) -> None:
        """End the connection."""
        if self.handshake_complete:
            self.fail(self.unfinished.crowded_code, "too many connections of unknown clients")
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and bound the message that they leave unfinished."""
        super().data_received(data)
        size = sum(map(len, self.frames)) + len(self.conn.reader.buffer)
        if self.close_sent or self.transport.is_closing():
            size = 0
        self.unfinished.set(self, size)
        if not size:
            self._end_deadline()
        elif self._deadline is None:
            reason = f"a message took more than {self.unfinished.timeout_s:g} s"
            self._deadline = self.loop.call_later(
                self.unfinished.timeout_s, self.fail, self.unfinished.timed_out_code, reason
            )

    def handle_cont(self, event: Frame) -> None:
        """Append a fragment to one buffer: a list of many small fragments takes ten times their bytes."""
        first = self.frames[0]
        joined = first if isinstance(first, bytearray) else bytearray(first)
        joined += event.data
        self.frames = [cast(bytes, joined)]  # uvicorn only joins and decodes them
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Pass a finished message to the application; the next message has a new deadline."""
        self._end_deadline()
        super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, and drop what it received: cycles of objects keep the protocol for a while."""
        self._end_deadline()
        if self._abort is not None:
            self._abort.cancel()
        self.frames = []
        self.conn.reader.buffer.clear()
        self.unfinished.set(self, 0)
        if self._admitted is not None:
            self.connections_of_listener.leave(self._admitted)
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """Close the websocket of a client that did not reply to a ping; uvicorn would not abort it."""
        if not (self.close_sent or self.transport.is_closing()):
            self.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")

    def fail(self, code: int, reason: str) -> None:
        """Drop the unfinished message and close the websocket."""
        self._end_deadline()
        self.frames = []
        self.unfinished.set(self, 0)
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._abort_later()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; a close does not wait for room in the transport's buffer."""
        if message["type"] == "websocket.close":
            self.writable.set()
            self._abort_later()
        await super().send(message)

    def _abort_later(self) -> None:
        if self._abort is None and not self.disconnected:
            self._abort = self.loop.call_later(ABORT_S, self.transport.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def socket_protocol(unfinished: UnfinishedMessages, connections: OpenConnections) -> type[SocketProtocol]:
    """Return the protocol of the websockets of a listener."""
    shared = {"unfinished": unfinished, "connections_of_listener": connections}
    return type("BoundedSocketProtocol", (SocketProtocol,), shared)
