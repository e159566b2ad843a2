"""The import of each service: seconds, CPU seconds and memory."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.script import run_module
from benchmarks.harness.sizes import Sizes

SERVICES = ("agent", "gateway", "tool-runner", "workflows")


def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure each service in several new processes; the fastest import counts."""
    found = {name: [_import(name) for _ in range(sizes.starts)] for name in ("launcher", *SERVICES)}
    return {name: min(times, key=lambda one: one["s"]) for name, times in found.items()}


def _import(name: str) -> dict[str, float]:
    return run_module("benchmarks.harness.importing", name)
