"""Streamed responses, and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
CLIENT_CLOSED = 499
"""The status in the access log when the client disconnected before the response, as nginx writes it."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Blank lines, which end an event: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def sse_event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


class BodyCut(Exception):
    """A body ends early: the connection is closed without the end of the body."""


class StreamedResponse(Response):
    """A body in pieces, which is cancelled as soon as the client disconnects.

    Starlette's `StreamingResponse`, and FastAPI's `EventSourceResponse` on top of it, do not fit. With
    servers of ASGI 2.4 they notice a disconnect only at the next piece, which may be minutes away. With other
    servers they cancel through a scope of anyio, which interrupts each `await` of the clean-up.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        on_disconnect: Callable[[], Awaitable[None]] | None = None,
        on_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Describe the response.

        `on_disconnect` is called if the client disconnects before the end of the body, `on_end` at the end of
        every response, even if no piece was sent.
        """
        self.status_code = status
        self.background = None
        self.body = b""
        self._pieces = pieces
        self._on_disconnect = on_disconnect
        self._on_end = on_end
        self.init_headers(headers)
        with contextlib.suppress(KeyError):
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and self._on_disconnect is not None:
                await self._on_disconnect()
        finally:
            leaving.cancel()
            if not sending.done():
                sending.cancel()
            await asyncio.wait((sending, leaving))
            if self._on_end is not None:
                await self._on_end()
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, BodyCut):
            # uvicorn closes the connection of a response without its last message: the client sees a
            # transport error.
            return
        finally:
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects. The body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; None if the client disconnects first, which cancels the work."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))


async def kept_alive(pieces: AsyncIterator[bytes], every_s: float = KEEP_ALIVE_S) -> AsyncIterator[bytes]:
    """Yield an event stream, with a comment after `every_s` seconds of silence between two events."""
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
            between = piece.endswith(EVENT_ENDS)
            yield piece
            coming = asyncio.create_task(following())
    finally:
        coming.cancel()
        await asyncio.wait((coming,))
        if not coming.cancelled():
            # A piece may fail while the client leaves; asyncio would log an error that is never read.
            coming.exception()
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
