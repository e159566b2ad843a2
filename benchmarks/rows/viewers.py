"""Many websockets that show one conversation: the delay from an event's timestamp to each websocket."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import aiohttp
from benchmarks.harness.scripts import PACED_CALLS, PACED_EVENTS_PER_S, model_name
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured

SUBPROTOCOL = "banksman.v1"
LIMITS = {"max_iterations": PACED_CALLS + 1}


def measure(system: Measured, sizes: Sizes) -> dict[str, Any]:
    """Show one run, paced by its model, to all viewers."""
    return asyncio.run(_measure(system.url, sizes.viewers))


async def _measure(url: str, viewers: int) -> dict[str, Any]:
    late_ms: list[float] = []
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        created = await _json(
            http, f"{url}/context/conversations", {"assistant": "add", "model": model_name("paced")}
        )
        conversation_id = created["conversation_id"]
        sockets = [await _subscribed(http, stack, url, conversation_id) for _ in range(viewers)]
        body = {"content": "Go on.", "overrides": LIMITS}
        await _json(http, f"{url}/context/conversations/{conversation_id}/runs", body)
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for socket in sockets:
                group.create_task(_view(socket, late_ms))
        took_s = time.perf_counter() - begun
    ordered = sorted(late_ms)
    return {
        "viewers": viewers,
        "wanted_events_per_s": PACED_EVENTS_PER_S,
        "events_per_s": round(len(ordered) / viewers / took_s, 1),
        "p50_ms": round(ordered[len(ordered) // 2], 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 1),
    }


async def _json(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(url, json=body) as response:
        response.raise_for_status()
        return await response.json()


async def _subscribed(
    http: aiohttp.ClientSession, stack: AsyncExitStack, url: str, conversation_id: str
) -> aiohttp.ClientWebSocketResponse:
    connecting = http.ws_connect(f"{url}/ws", protocols=[SUBPROTOCOL], compress=0)
    socket = await stack.enter_async_context(connecting)
    await socket.send_json({"type": "hello"})
    fields = {"conversation_id": conversation_id, "after_seq": 0, "detail": "full"}
    await socket.send_json({"type": "subscribe", "id": "s", **fields})
    while (await socket.receive_json())["type"] != "replay.done":
        continue
    return socket


async def _view(socket: aiohttp.ClientWebSocketResponse, late_ms: list[float]) -> None:
    """Record the delay of each stored event until the run ends."""
    while True:
        frame = await socket.receive_json()
        if "seq" in frame:
            late_ms.append((time.time() - datetime.fromisoformat(frame["ts"]).timestamp()) * 1000)
        if frame["type"] == "run.finished":
            return
