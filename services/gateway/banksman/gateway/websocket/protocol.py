"""uvicorn's websocket protocol, with a close that cannot hang on a client that does not read."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ABORT_S = 15.0
"""Seconds after the close frame until the connection to a client that reads nothing is aborted."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """Sends a close frame although the client does not read, and aborts the connection after 15 seconds."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; a close does not wait for room in the transport's buffer."""
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(ABORT_S, self.transport.abort)
        await super().send(message)
