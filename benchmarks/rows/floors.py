"""The floors: the cost of the parts of a run without Banksman."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.script import run_module
from benchmarks.harness.sizes import Sizes
from benchmarks.harness.system import Model

CLIENTS = ("aiohttp", "openai", "anthropic")


def measure(model: Model, sizes: Sizes) -> dict[str, Any]:
    """Measure a chain of messages, the model requests of a run, and a sandbox."""
    seconds = ("--seconds", str(sizes.seconds / 2))
    return {
        "chain": {
            str(number): _rounded(run_module("benchmarks.floors.chain", "--in-flight", str(number), *seconds))
            for number in sizes.in_flight
        },
        "model_requests": {
            client: _rounded(run_module("benchmarks.floors.loop", model.url, client, *seconds))
            for client in CLIENTS
        },
        "bwrap": _rounded(run_module("benchmarks.floors.bwrap", *seconds)),
    }


def _rounded(found: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 1) for name, number in found.items()}
