"""The cost of a run with more agents, which must not grow with their number."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness.broker import counts
from benchmarks.harness.load import Runs, client
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured, Model, running
from benchmarks.rows.runs import under

IN_FLIGHT = 16


def measure(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Measure runs in systems with different numbers of agents."""
    found: dict[str, Any] = {}
    for number in sizes.agents:
        with running(model, agents=number) as system:
            found[str(number)] = asyncio.run(_measure(system, sizes))
    return found


async def _measure(system: Measured, sizes: Sizes) -> dict[str, Any]:
    async with client() as http:
        runs = Runs(http, system.url, "add")
        await under(system, runs, IN_FLIGHT, sizes.seconds / 4)
        before = counts(system.monitoring_url)
        result = await under(system, runs, IN_FLIGHT, sizes.seconds)
        messages = counts(system.monitoring_url).since(before)
    # The message counts also include the runs before and after the measured period.
    executed = result["runs"] + 2 * IN_FLIGHT
    return {
        "runs_per_s": result["runs_per_s"],
        "cpu_ms_per_run": result["cpu_ms_per_run"],
        "agents_cpu_ms_per_run": result["cpu_ms_per_run_by_service"]["agent"],
        "messages_from_broker_per_run": round(messages.sent / executed, 1),
    }
