"""The transport of one websocket: queued frames out, texts in, and one close code."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from banksman.gateway.live.send_buffer import Outbox

CLOSED = (WebSocketDisconnect, OSError, RuntimeError)
"""Exceptions of sending on a closed websocket. uvicorn raises `RuntimeError` after closing it for invalid
UTF-8, a frame over the size limit, or a message that was not finished in time."""
CLOSE_S = 2.0
"""Seconds that the queued frames, and then the close frame, may take."""

INTERNAL_ERROR, RESTART = 1011, 1012
BINARY, UNAUTHENTICATED, FORBIDDEN, TIMED_OUT, SECOND_HELLO = 4400, 4401, 4403, 4408, 4409
UNSUPPORTED_PROTOCOL, RATE_LIMITED, SLOW_CONSUMER = 4426, 4429, 4508

CloseFrame = tuple[int, str]
"""Code and reason."""


class Transport:
    """Sends and receives the frames of one websocket, until either side ends it."""

    def __init__(self, websocket: WebSocket) -> None:
        self.outbox = Outbox(on_overflow=self._overflowed)
        self._websocket = websocket
        self._ending: asyncio.Future[CloseFrame | None] = asyncio.get_running_loop().create_future()

    async def ended(self) -> CloseFrame | None:
        """Wait until either side ends the websocket.

        Returns:
            The close frame to send; None if the client has disconnected.
        """
        return await self._ending

    def send(self, frame: BaseModel) -> None:
        """Queue a control frame."""
        self.outbox.put(frame.model_dump_json(exclude_none=True))

    def end(self, code: int, reason: str) -> None:
        """End the websocket with a close code. The first code counts."""
        if not self._ending.done():
            self._ending.set_result((code, reason))

    async def receive(self) -> str | None:
        """Return the text of the next frame; None after the end."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._disconnected()
            return None
        text = message.get("text")
        if text is None:
            self.end(BINARY, "frames are JSON text")
        return text

    async def write(self) -> None:
        """Send queued frames until the client disconnects."""
        while True:
            frame = await self.outbox.next()
            try:
                await self._websocket.send_text(frame)
            except CLOSED:
                self._disconnected()
                return

    async def close(self, code: int, reason: str) -> None:
        """Send the queued frames, then the close frame; give up on each after two seconds."""
        try:
            async with asyncio.timeout(CLOSE_S):
                # A slow client would not read the queued frames: it resumes from its last event.
                while code != SLOW_CONSUMER and not self.outbox.empty:
                    await self._websocket.send_text(await self.outbox.next())
        except (TimeoutError, *CLOSED):
            pass
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (TimeoutError, *CLOSED):
            return

    def _overflowed(self) -> None:
        self.end(SLOW_CONSUMER, "the client reads too slowly; resume")

    def _disconnected(self) -> None:
        if not self._ending.done():
            self._ending.set_result(None)
