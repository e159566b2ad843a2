"""The memory of an agent with 2,000 runs that wait for a slow model.

Run: python benchmarks/waiting.py [--runs 2000]

One agent has a slot for each run. The model replies to all runs at once, after every run has sent its request
or waits for a connection. Targets: the agent uses at most 512 MB, and every run completes. The benchmark
prints the measurements and always exits with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.support.chaos.fleet import Fleet
from tests.support.parked import resident_bytes
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel, scripted_model

AGENT_MB = 512
CONCURRENT_REQUESTS = 32
GATE = "slow"
POLL_S = 0.5
WITHIN_S = 600.0


async def main(runs: int) -> None:
    print(f"{runs} runs; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    settings = {
        # A single tenant gets three quarters of the slots.
        "BANKSMAN_AGENT__SLOTS": str(2 * runs),
        "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(2 * runs),
    }
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        name = model.play("slow", [ScriptedReply(text="Done.", gate=Gate(name=GATE))], at_end="repeat")
        async with Fleet(Path(place), model.url, agents=1, gateways=1, runners=1, settings=settings) as fleet:
            await _measure(fleet, model, name, runs)


async def _measure(fleet: Fleet, model: ScriptedModel, name: str, number: int) -> None:
    before = _agent_mb(fleet)
    async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=60) as http:
        begun = time.perf_counter()
        started = await _start(http, name, number)
        await _wait_for(http, started, lambda found: found["running"] == number)
        waiting = _agent_mb(fleet)
        print(f"all wait after {time.perf_counter() - begun:.0f} s; requests {len(model.requests('slow'))}")
        print(
            f"agent: {before:.0f} MB before, {waiting:.0f} MB with {number} runs (target {AGENT_MB})",
            flush=True,
        )
        begun = time.perf_counter()
        model.open_gate(GATE)
        found = await _wait_for(http, started, lambda found: not found["running"])
        took_s = time.perf_counter() - begun
        print(f"all ended after {took_s:.0f} s: {dict(found)}; agent {_agent_mb(fleet):.0f} MB")


async def _wait_for(
    http: httpx.AsyncClient, runs: list[str], wanted: Callable[[Counter[str]], bool]
) -> Counter[str]:
    """Wait until the run counts by status satisfy `wanted`; return them."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = await _statuses(http, runs)
            if wanted(found):
                return found
            await asyncio.sleep(POLL_S)


async def _start(http: httpx.AsyncClient, name: str, number: int) -> list[str]:
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def start() -> str:
        async with limit:
            made = await http.post("/context/conversations", json={"model": name})
            conversation = made.raise_for_status().json()["conversation_id"]
            url = f"/context/conversations/{conversation}/runs"
            return (await http.post(url, json={"content": "go"})).raise_for_status().json()["run_id"]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(start()) for _ in range(number)]
    return [task.result() for task in tasks]


async def _statuses(http: httpx.AsyncClient, runs: list[str]) -> Counter[str]:
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def status(run_id: str) -> str:
        async with limit:
            run: dict[str, Any] = (await http.get(f"/context/runs/{run_id}")).json()
            return run["status"]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(status(run_id)) for run_id in runs]
    return Counter(task.result() for task in tasks)


def _agent_mb(fleet: Fleet) -> float:
    pid = fleet["agent-1"].pid
    assert pid is not None
    return resident_bytes(pid) / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2_000)
    asyncio.run(main(parser.parse_args().runs))
