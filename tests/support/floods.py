"""Floods of websockets that read nothing, and the frames that they send."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import struct
from collections.abc import Sequence

from tests.support.parked import resident_bytes
from tests.support.polling import scripted_delay

SOCKETS = 48
FRAME = 250_000


def framed(payload: bytes) -> bytes:
    """Return a text frame with the mask 0."""
    return b"\x81\xff" + struct.pack("!Q", len(payload)) + bytes(4) + payload


def message(**fields: object) -> bytes:
    return framed(json.dumps({"id": "f-1", **fields}, ensure_ascii=False).encode())


def large_text() -> bytes:
    text = "\N{GRINNING FACE}" + "x" * (FRAME - 200)
    return message(type="chat.send", conversation_id="c-1", content=text)


def many_values() -> bytes:
    return message(type="chat.send", conversation_id="c-1", content="x", variables={"v": [[]] * 19_000})


def decision() -> bytes:
    """A decision that waits for its approval request."""
    edited = {"call_id": "k", "verdict": "approve", "arguments": {"text": "x" * (FRAME - 400)}}
    return message(type="approval.decision", approval_id="a-1", items=[edited])


def invalid() -> bytes:
    """A frame that breaks a rule."""
    return message(
        type="chat.send", conversation_id="c-1", content=["\N{GRINNING FACE}" + "x" * (FRAME - 200)]
    )


async def flood(port: int, hello: bytes, frame: bytes, until: float) -> None:
    """Send a frame over and over after `hello`, read nothing, and break the connection off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        key = base64.b64encode(os.urandom(16))
        writer.write(
            b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-protocol: banksman.v1\r\n"
            b"sec-websocket-key: " + key + b"\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.write(hello)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout_at(until):
                while not reader.at_eof():
                    writer.write(frame)
                    await writer.drain()
    finally:
        writer.transport.abort()


async def flood_all(port: int, pid: int, hellos: Sequence[bytes], frame: bytes, seconds: float) -> int:
    """Flood with `SOCKETS` sockets; return the most bytes of memory that the gateway `pid` had."""
    until = asyncio.get_running_loop().time() + seconds
    most = 0
    async with asyncio.TaskGroup() as group:
        for number in range(SOCKETS):
            group.create_task(flood(port, hellos[number % len(hellos)], frame, until))
        while asyncio.get_running_loop().time() < until:
            most = max(most, resident_bytes(pid))
            await scripted_delay(0.05)  # between two measurements
    return most
