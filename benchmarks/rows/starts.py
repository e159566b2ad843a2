"""The start of a system, and its cost while it is idle."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.harness.broker import counts, stored_messages
from benchmarks.harness.processes import cpu_by_service, memory
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Measured, Model, data_directory, started

SETTLED_S = 5.0
"""Seconds after the start before the measurement of the idle system begins."""


def measure(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Start a system without data, then several times with its data; measure the last one while idle."""
    with data_directory() as directory:
        with started(model, directory) as (_, measured):
            first = _start(measured)
        warm: list[dict[str, float]] = []
        rest: dict[str, Any] = {}
        for number in range(sizes.starts):
            with started(model, directory) as (_, measured):
                warm.append(_start(measured))
                if number == sizes.starts - 1:
                    rest = _rest(measured, sizes.idle_s)
    return {"first": first, "warm": sorted(warm, key=lambda one: one["s"])[len(warm) // 2], "idle": rest}


def _start(system: Measured) -> dict[str, float]:
    return {"s": round(system.start_s, 1), "cpu_s": round(system.start_cpu_s, 1)}


def _rest(system: Measured, seconds: float) -> dict[str, Any]:
    time.sleep(min(SETTLED_S, seconds))
    begun, cpu, before = time.perf_counter(), cpu_by_service(system.pids), counts(system.monitoring_url)
    stored = stored_messages(system.monitoring_url)
    time.sleep(seconds)
    writes = stored_messages(system.monitoring_url) - stored
    took_s = time.perf_counter() - begun
    used = {name: (after - cpu[name]) / took_s for name, after in cpu_by_service(system.pids).items()}
    messages, total = counts(system.monitoring_url).since(before), memory(system.pids)
    return {
        "cpu_percent_of_a_core": round(sum(used.values()) * 100, 1),
        "cpu_percent_by_service": {name: round(share * 100, 1) for name, share in used.items()},
        "messages_per_s": round(messages.received / took_s, 1),
        "api_requests_per_s": round(messages.api / took_s, 1),
        "writes_per_s": round(writes / took_s, 2),
        "resident_mib": round(total.resident),
        "proportional_mib": round(total.proportional),
    }
