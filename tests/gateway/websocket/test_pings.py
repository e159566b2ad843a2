from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.library_internals.uvicorn_connections import (
    ListenerLimits,
    OpenConnections,
    http_protocol,
)
from banksman.library_internals.uvicorn_websockets import UnfinishedMessages, socket_protocol
from banksman.runtime.health import listening

PING_EVERY_S = 1.0
"""Much longer than a busy machine holds up a process: a client that replies later is closed."""
PING, CLOSE, TEXT = 0x89, 0x88, 0x81
MASK = b"\x8a\x80\x01\x02"
"""The mask of the client's frames."""
Message = MutableMapping[str, Any]


class Client:
    """A websocket client that sends bytes as they are, and replies to nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def greet(self) -> None:
        """Begin the websocket."""
        self.send(
            b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        response = await self._reader.readuntil(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 101 ")

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def frame(self) -> tuple[int, bytes]:
        """Return the first byte and the payload of the next frame."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            first, size = await self._reader.readexactly(2)
            return first, await self._reader.readexactly(size)

    async def ended(self) -> bool:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            return not await self._reader.read()


def masked(head: bytes, payload: bytes) -> bytes:
    """Return a frame of a client."""
    return head + MASK + bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Send each text back."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            if "text" in message:
                await send({"type": "websocket.send", "text": message["text"]})


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """Connect to a server that pings every `PING_EVERY_S` seconds."""
    connections = OpenConnections(ListenerLimits(8, 4, 4, header_s=10, body_s=10))
    unfinished = UnfinishedMessages(WAIT_TIMEOUT_S, 1024, timed_out_code=4408, crowded_code=4429)
    config = uvicorn.Config(
        echo,
        host="127.0.0.1",
        port=0,
        http=http_protocol(connections),
        ws=socket_protocol(unfinished, connections),
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=PING_EVERY_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
    )
    async with listening(config) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            client = Client(reader, writer)
            await client.greet()
            yield client
        finally:
            writer.close()


def pong(payload: bytes) -> bytes:
    """Return the reply of a client to a ping."""
    return masked(bytes((0x8A, 0x80 | len(payload))), payload)


async def test_a_client_that_replies_to_pings_stays_connected() -> None:
    async with connected() as client:
        for _ in range(3):
            first, payload = await client.frame()
            assert first == PING
            client.send(pong(payload))
        first, _ = await client.frame()
        assert first == PING
        client.send(masked(b"\x81\x82", b"hi"))
        assert await client.frame() == (TEXT, b"hi")


async def test_a_client_that_does_not_reply_is_closed_at_the_next_ping() -> None:
    async with connected() as client:
        first, _ = await client.frame()
        assert first == PING
        code = (1011).to_bytes(2)
        assert await client.frame() == (CLOSE, code + b"keepalive ping timeout")
        assert await client.ended()


async def test_a_message_does_not_take_the_place_of_a_pong() -> None:
    async with connected() as client:
        first, _ = await client.frame()
        assert first == PING
        client.send(masked(b"\x81\x82", b"hi"))
        assert await client.frame() == (TEXT, b"hi")
        first, _ = await client.frame()
        assert first == CLOSE


async def test_a_pong_between_the_fragments_of_a_message_is_a_pong() -> None:
    async with connected() as client:
        client.send(masked(b"\x01\x81", b"h"))
        for _ in range(2):
            first, payload = await client.frame()
            assert first == PING
            client.send(pong(payload))
        client.send(masked(b"\x80\x81", b"i"))
        assert await client.frame() == (TEXT, b"hi")
