"""Runs without a pause: the cost of a run must not grow with the number of runs before it."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness.load import Runs, client
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured, Model, running
from benchmarks.rows.runs import under

IN_FLIGHT = 64


def measure(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Measure the first and the last of several periods in a new system."""
    with running(model) as system:
        return asyncio.run(_measure(system, sizes))


async def _measure(system: Measured, sizes: Sizes) -> dict[str, Any]:
    async with client() as http:
        runs = Runs(http, system.url, "add")
        periods = [await under(system, runs, IN_FLIGHT, sizes.seconds) for _ in range(sizes.periods)]
    return {
        "periods": sizes.periods,
        "runs": sum(period["runs"] for period in periods),
        "first": periods[0],
        "last": periods[-1],
        "largest_p99_ms": max(period["p99_ms"] for period in periods),
    }
