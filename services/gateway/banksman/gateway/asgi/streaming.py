"""Answers that are written while they are made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Stream(Response):
    """A body of pieces. When the client goes away its making is cancelled at once, and `gone` is called.

    `closed` is called at the end of every answer, also of one whose first piece was never asked for.

    Starlette's own notices a client that left only when it next sends something.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        gone: Callable[[], Awaitable[None]] | None = None,
        closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status_code = status
        self.background = None
        self.body = b""
        self._pieces = pieces
        self._gone = gone
        self._closed = closed
        self.init_headers(headers)
        with contextlib.suppress(KeyError):
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and self._gone is not None:
                await self._gone()
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait((sending, leaving))
            if self._closed is not None:
                await self._closed()
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return
        finally:
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()


async def left(receive: Receive) -> None:
    """Return when the client has gone away; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def kept_alive(pieces: AsyncIterator[bytes], every_s: float = KEEP_ALIVE_S) -> AsyncIterator[bytes]:
    """An event stream with comments in its silences, only ever between two events."""
    between = True
    iterator = aiter(pieces)

    async def following() -> bytes | None:
        return await anext(iterator, None)

    coming = asyncio.create_task(following())
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=every_s)
            if not done:
                if between:
                    yield KEEP_ALIVE
                continue
            piece = coming.result()
            if piece is None:
                return
            between = piece.endswith((b"\n\n", b"\r\n\r\n"))
            yield piece
            coming = asyncio.create_task(following())
    finally:
        coming.cancel()
        await asyncio.wait((coming,))
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
