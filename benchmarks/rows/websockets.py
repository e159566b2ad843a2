"""Idle open websockets: memory and CPU time, at the gateway and at a bare uvicorn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import aiohttp
from benchmarks.harness.processes import cpu_s, memory
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured
from tests.support.system import wait_ready
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.cli.machine import free_port

SUBPROTOCOL = "banksman.v1"
AT_ONCE = 50
"""Websockets that are opened at the same time."""


def measure(system: Measured, sizes: Sizes) -> dict[str, Any]:
    """Open websockets at the gateway, then at a bare uvicorn."""
    gateway = asyncio.run(_measure(system.url, system.pids["gateway"], sizes, hello=True))
    with _uvicorn() as (url, pid):
        floor = asyncio.run(_measure(url, pid, sizes, hello=False))
    return {"websockets": sizes.websockets, "gateway": gateway, "uvicorn": floor}


async def _measure(url: str, pid: int, sizes: Sizes, *, hello: bool) -> dict[str, float]:
    before = memory({"server": pid})
    limit = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        async def open_one() -> None:
            async with limit:
                socket = await http.ws_connect(f"{url}/ws", protocols=[SUBPROTOCOL], compress=0)
                if hello:
                    await socket.send_json({"type": "hello"})
                    await socket.receive_json()
                # Reads until the end, because a client responds to pings only while it reads.
                reading.append(asyncio.create_task(socket.receive()))

        reading: list[asyncio.Task[Any]] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(sizes.websockets):
                group.create_task(open_one())
        await asyncio.sleep(sizes.idle_s / 3)
        open_mib, cpu = memory({"server": pid}), cpu_s(pid)
        await asyncio.sleep(sizes.idle_s)
        used = (cpu_s(pid) - cpu) / sizes.idle_s
        for task in reading:
            task.cancel()
    return {
        "kib_each": round((open_mib.resident - before.resident) * 1024 / sizes.websockets, 1),
        "cpu_percent_of_a_core": round(used * 100, 2),
    }


@contextmanager
def _uvicorn() -> Generator[tuple[str, int]]:
    port = free_port()
    application = ("benchmarks.floors.websocket:app", "--ws-per-message-deflate", "false")
    options = ("--port", str(port), "--log-level", "warning", "--ws", "websockets-sansio", "--loop", "uvloop")
    process = subprocess.Popen([sys.executable, "-m", "uvicorn", *application, *options])
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, lambda: None if process.poll() is None else "uvicorn ended")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(timeout=WAIT_TIMEOUT_S)
