"""Server-sent events of a model's reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress

import aiohttp

from banksman.agent.providers.retries import TransientFault

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A longer event ends its stream: an event is held in memory until it is complete."""

_END_S = 0.1
"""Seconds to wait for the end of a stream after its last event."""


async def event_data(content: aiohttp.StreamReader, end: bytes) -> AsyncGenerator[bytes]:
    """Yield the data of each event up to the one whose data begins with `end`.

    Events without data, such as comments, are left out; so is one without the empty line that ends it.

    Raises:
        TransientFault: An event is too long.
    """
    events = Events()
    async for piece in content.iter_any():
        for data in events.complete(piece):
            if data.startswith(end):
                await _read_to_end(content)
                return
            yield data


class Events:
    """Divides a stream into events.

    See https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        """The beginning of a line."""
        self._data: list[bytes] = []
        """The data of the event that is not complete."""
        self._bytes = 0
        """The size of that event."""
        self._after_return = False
        """Whether the stream ends with a carriage return so far."""

    def complete(self, piece: bytes) -> Generator[bytes]:
        """Yield the data of the events that a piece of the stream completes.

        Raises:
            TransientFault: An event is too long.
        """
        if self._after_return and piece.startswith(b"\n"):
            # The second half of a line end.
            piece = piece[1:]
        self._after_return = piece.endswith(b"\r")
        self._bytes += len(piece)
        if self._bytes > MAX_EVENT_BYTES:
            raise TransientFault(f"the model's server sent an event of more than {MAX_EVENT_BYTES} bytes")
        self._rest += piece
        # A long line that arrives in small pieces must not be searched again with each of them.
        if b"\n" not in piece and b"\r" not in piece:
            return
        lines = self._rest.splitlines(keepends=True)
        self._rest = bytearray() if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            field = bytes(line).rstrip(b"\r\n")
            if field.startswith(b"data:"):
                self._data.append(field[5:].removeprefix(b" "))
            elif not field:
                self._bytes = len(self._rest)
                if self._data:
                    data = b"\n".join(self._data)
                    self._data.clear()
                    yield data


async def _read_to_end(content: aiohttp.StreamReader) -> None:
    """Read the end of a finished stream: its connection can serve the next request only after it."""
    if content.at_eof():
        return
    # The reply is complete, whatever happens to the connection.
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_END_S):
            async for _ in content.iter_any():
                pass
