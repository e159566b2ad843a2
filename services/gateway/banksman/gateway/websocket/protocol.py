"""uvicorn's websocket, with the two endings that it leaves to chance."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ABORT_S = 15.0
"""Seconds after a close frame until a peer that reads nothing is cut off."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """Lets a close frame pass though the peer does not read, and cuts such a peer off in the end."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a close does not wait for room in the transport's buffer."""
        if message["type"] == "websocket.close":
            self.writable.set()
            self.loop.call_later(ABORT_S, self.transport.abort)
        await super().send(message)
