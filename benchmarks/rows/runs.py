"""Runs of three trivial tool calls: throughput, latency, CPU time and messages per run, memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from benchmarks.harness.broker import counts, stored_messages
from benchmarks.harness.load import Runs, Window, client, under_load
from benchmarks.harness.processes import cpu_by_service, cpu_s, memory
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured

Result = dict[str, Any]

WARM_RUNS = 5


async def measure(system: Measured, assistant: str, sizes: Sizes) -> Result:
    """Measure the runs of an assistant."""
    async with client() as http:
        runs = Runs(http, system.url, assistant)
        for _ in range(WARM_RUNS):
            await runs()
        idle = memory(system.own_pids)
        counted = await _messages(system, runs, sizes)
        loads = [await under(system, runs, number, sizes.seconds) for number in sizes.in_flight]
    return {
        "idle_resident_mib": round(idle.resident),
        "idle_proportional_mib": round(idle.proportional),
        "messages": counted,
        "in_flight": {str(number): load for number, load in zip(sizes.in_flight, loads, strict=True)},
    }


async def under(system: Measured, runs: Runs, in_flight: int, seconds: float) -> Result:
    """Measure runs with a number of runs in flight."""
    cpu: list[dict[str, float]] = []

    def note() -> None:
        beside = {"model server": cpu_s(system.model_pid), "client": time.process_time()}
        cpu.append({**cpu_by_service(system.pids), **beside})

    window = await under_load(runs, in_flight, seconds, begins=note, ends=note)
    used = memory(system.own_pids)
    per_run = {name: (cpu[1][name] - cpu[0][name]) * 1000 / window.done for name in cpu[1]}
    beside = {name: per_run.pop(name) for name in ("model server", "client")}
    return {
        **timing(window),
        "cpu_ms_per_run": round(sum(per_run.values()), 1),
        "cpu_ms_per_run_by_service": {name: round(ms, 1) for name, ms in per_run.items()},
        "cpu_ms_per_run_beside": {name: round(ms, 1) for name, ms in beside.items()},
        "resident_mib": round(used.resident),
        "proportional_mib": round(used.proportional),
    }


def timing(window: Window) -> Result:
    """Return the throughput and the latencies of a period."""
    return {
        "runs": window.done,
        "runs_per_s": round(window.per_s, 1),
        "p50_ms": round(window.percentile_ms(0.5)),
        "p99_ms": round(window.percentile_ms(0.99)),
    }


async def _messages(system: Measured, runs: Runs, sizes: Sizes) -> Result:
    """Return the messages of sequential runs, minus those of an idle system in the same time."""

    async def several() -> None:
        for _ in range(sizes.counted_runs):
            await runs()

    idle_s, idle = await _counted(system, asyncio.sleep(sizes.idle_s / 5))
    took_s, found = await _counted(system, several())
    return {
        name: round((number - idle.get(name, 0) * took_s / idle_s) / sizes.counted_runs, 1)
        for name, number in found.items()
    }


async def _counted(system: Measured, work: Awaitable[None]) -> tuple[float, dict[str, int]]:
    """Return the duration of work in seconds, and the messages meanwhile."""
    before, stored = counts(system.monitoring_url), stored_messages(system.monitoring_url)
    begun = time.perf_counter()
    await work
    took_s, found = time.perf_counter() - begun, counts(system.monitoring_url).since(before)
    totals = {
        "to_broker": found.received,
        "from_broker": found.sent,
        "api_requests": found.api,
        "stored": stored_messages(system.monitoring_url) - stored,
    }
    return took_s, {**totals, **{f"from {name}": number for name, number in found.received_from.items()}}
