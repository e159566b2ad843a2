"""Clients that send more than is handled: the memory of the gateway during and after their floods."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import struct
import sys
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY
from tests.support.nats import Broker
from tests.support.parked import resident_bytes
from tests.support.polling import eventually, scripted_delay

from banksman.cli.machine import free_port

SOCKETS = 48
TENANTS = 6
FLOODS = 2
FLOOD_S = 3.0
FRAME = 250_000
KEPT = 1.3
"""Memory after the floods, divided by that before."""
RETURNED_S = 25.0
"""Seconds until it is back: 15 on an idle machine."""
HELD_BYTES = 40 * 1024 * 1024
"""Memory that one tenant may take: 16 MiB of waiting requests, and what is received, sent and garbage."""


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


def token(number: int) -> str:
    return f"token-{number}"


@pytest.fixture
async def flooded(own_nats: Broker) -> AsyncGenerator[tuple[int, int]]:
    """A gateway in its own process: its id and its port."""
    port = free_port()
    keys = [
        {
            "sha256": hashlib.sha256(token(number).encode()).hexdigest(),
            "tenant": f"t-{number}",
            "user": f"u-{number}",
        }
        for number in range(TENANTS)
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")},
        "BANKSMAN_NATS__URL": own_nats.url,
        "BANKSMAN_NATS__REPLICAS": str(own_nats.replicas),
        "BANKSMAN_GATEWAY__PORT": str(port),
        "BANKSMAN_GATEWAY__KEYS": json.dumps(keys),
        "BANKSMAN_MODELS__DEFAULT": "demo:demo",
        "BANKSMAN_APPROVALS__SIGNING_KEY": SIGNING_KEY,
        "BANKSMAN_ALLOW_WEAK_DURABILITY": "true",
    }
    command = (sys.executable, "-m", "banksman.cli", "gateway")
    process = await asyncio.create_subprocess_exec(*command, env=environment)

    async def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(verify=False) as http:
                return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        return False

    await eventually(ready, 30)
    yield process.pid, port
    process.kill()
    await process.wait()


async def flood(port: int, number: int, frame: bytes, until: float) -> None:
    """Send a frame over and over, read nothing, and break the connection off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        key = base64.b64encode(os.urandom(16))
        writer.write(
            b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-protocol: banksman.v1\r\n"
            b"sec-websocket-key: " + key + b"\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.write(message(type="hello", token=token(number % TENANTS)))
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout_at(until):
                while not reader.at_eof():
                    writer.write(frame)
                    await writer.drain()
    finally:
        writer.transport.abort()


async def flood_all(port: int, pid: int, frame: bytes, seconds: float) -> int:
    """Flood with all sockets; return the most memory that the gateway had."""
    until = asyncio.get_running_loop().time() + seconds
    most = 0
    async with asyncio.TaskGroup() as group:
        for number in range(SOCKETS):
            group.create_task(flood(port, number, frame, until))
        while asyncio.get_running_loop().time() < until:
            most = max(most, resident_bytes(pid))
            await scripted_delay(0.05)  # between two measurements
    return most


@pytest.mark.parametrize("frame", [large_text, many_values, decision, invalid])
async def test_memory_is_back_after_floods_of_websockets(
    flooded: tuple[int, int], frame: Callable[[], bytes]
) -> None:
    """Compared with the memory after the ordinary frames of as many websockets."""
    pid, port = flooded
    await flood_all(port, pid, message(type="ping"), FLOOD_S / 5)
    before = resident_bytes(pid)
    most = max([await flood_all(port, pid, frame(), FLOOD_S) for _ in range(FLOODS)])
    assert most < before + TENANTS * HELD_BYTES
    await eventually(lambda: resident_bytes(pid) < KEPT * before, RETURNED_S)
