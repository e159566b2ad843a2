"""The time to the first bytes of a streamed reply, from the model server and through the gateway."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles
from typing import Any

import aiohttp
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured, Model

BODY = {
    "model": "scripted/text",
    "messages": [{"role": "user", "content": "Write a short text."}],
    "stream": True,
}


def measure(system: Measured, model: Model, sizes: Sizes) -> dict[str, Any]:
    """Send sequential requests, alternately to the model server and the gateway."""
    return asyncio.run(_measure(system, model, sizes.requests))


async def _measure(system: Measured, model: Model, requests: int) -> dict[str, Any]:
    took_s: dict[str, list[float]] = {"direct": [], "gateway": []}
    async with aiohttp.ClientSession() as http:
        for _ in range(requests):
            took_s["direct"].append(await _first_bytes(http, model.url))
            took_s["gateway"].append(await _first_bytes(http, system.url))
    medians = {name: quantiles(times)[1] * 1000 for name, times in took_s.items()}
    return {
        "direct_p50_ms": round(medians["direct"], 2),
        "gateway_p50_ms": round(medians["gateway"], 2),
        "added_p50_ms": round(medians["gateway"] - medians["direct"], 2),
    }


async def _first_bytes(http: aiohttp.ClientSession, url: str) -> float:
    begun = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", json=BODY) as response:
        response.raise_for_status()
        await response.content.readany()
        took_s = time.perf_counter() - begun
        await response.read()
    return took_s
