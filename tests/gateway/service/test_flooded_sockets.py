"""Clients that send more than is handled: the memory of the gateway during and after their floods."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY
from tests.support.floods import decision, flood_all, invalid, large_text, many_values, message
from tests.support.nats import Broker
from tests.support.parked import resident_bytes
from tests.support.polling import eventually

from banksman.cli.machine import free_port

TENANTS = 6
FLOODS = 2
FLOOD_S = 3.0
KEPT = 1.3
"""Memory after the floods, divided by that before."""
RETURNED_S = 25.0
"""Seconds until it is back: 15 on an idle machine."""
HELD_BYTES = 40 * 1024 * 1024
"""Memory that one tenant may take: 16 MiB of waiting requests, and what is received, sent and garbage."""


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


@pytest.mark.parametrize("frame", [large_text, many_values, decision, invalid])
async def test_memory_is_back_after_floods_of_websockets(
    flooded: tuple[int, int], frame: Callable[[], bytes]
) -> None:
    """Compared with the memory after the ordinary frames of as many websockets."""
    pid, port = flooded
    hellos = [message(type="hello", token=token(number)) for number in range(TENANTS)]
    await flood_all(port, pid, hellos, message(type="ping"), FLOOD_S / 5)
    before = resident_bytes(pid)
    most = max([await flood_all(port, pid, hellos, frame(), FLOOD_S) for _ in range(FLOODS)])
    assert most < before + TENANTS * HELD_BYTES
    await eventually(lambda: resident_bytes(pid) < KEPT * before, RETURNED_S)
