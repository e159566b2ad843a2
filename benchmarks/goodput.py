"""Goodput under overload: completed runs per second at three times the load, as a share of the maximum.

Run: python -m benchmarks.goodput [--agents 1 2 4] [--seconds 20] [--times 3]

For each number of agents, the maximum is the throughput of clients that wait for each run before they start
the next one. Then clients start runs at three times that rate, whatever happens to earlier ones, while others
wait for their outcomes. The maximum is measured again afterwards, because the speed of virtual machines
changes within seconds; the mean of both counts. Goodput counts the runs that complete meanwhile. The clients
run on the same machine and take more of it when they start more runs: both rates are divided by the part of
the processors that they leave. On a machine with other work, the system's CPU time per completed run is the
better measure: it is printed as a ratio too. The exit code is 1 if goodput is below 90 % of the maximum, or
if a refusal has another status than 429 or names no time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
from benchmarks.harness.load import Runs, client, under_load
from benchmarks.harness.processes import cpu_by_service
from benchmarks.harness.system import Measured, model_server, running

IN_FLIGHT = 64
"""Concurrent clients of the measurement of the maximum."""
MIN_SHARE = 0.9
WARM_S, MIN_REFUSED = 5.0, 20
"""Seconds of overload before completed runs are counted, and refusals: the queue is full then."""


@dataclass
class Period:
    """The completed runs of a period, and the CPU seconds of the system per run by service."""

    per_s: float
    cpu_s: dict[str, float]
    clients: float
    """The part of all processors that the clients took."""

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per completed run."""
        return sum(self.cpu_s.values()) * 1000

    @property
    def left_per_s(self) -> float:
        """Completed runs per second if the clients took nothing of the machine."""
        return self.per_s / (1 - self.clients)


@dataclass
class Overload:
    """Starts runs at a rate."""

    url: str
    rate: float
    responses: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0
    silent: int = 0
    """Refusals without a time."""
    done: int = 0

    async def start(self, http: aiohttp.ClientSession) -> None:
        """Start a run and wait for its outcome."""
        body = {"content": "Add the numbers.", "assistant": "add"}
        try:
            async with http.post(f"{self.url}/v1/chat?wait_s=60", json=body) as response:
                run = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.responses[type(error).__name__] += 1
            return
        self.responses[str(run.get("status") or response.status)] += 1
        self.refused += response.status >= 400
        self.silent += response.status >= 400 and "retry-after" not in response.headers
        self.done += run.get("status") == "completed"

    async def offer(self, http: aiohttp.ClientSession, seconds: float, group: asyncio.TaskGroup) -> None:
        """Start runs for a time, and do not wait for their outcomes."""
        begun, started = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds:
            while started < passed * self.rate:
                group.create_task(self.start(http))
                started += 1
            await asyncio.sleep(0.005)


async def maximum(system: Measured, seconds: float) -> Period:
    """Measure clients that wait for each run before they start the next one."""
    cpu: list[dict[str, float]] = []
    clients: list[float] = []

    def note() -> None:
        cpu.append(cpu_by_service(system.pids))
        clients.append(time.process_time())

    async with client() as http:
        runs = Runs(http, system.url, "add")
        window = await under_load(runs, IN_FLIGHT, seconds, begins=note, ends=note)
    share = _of_machine(clients[1] - clients[0], window.length_s)
    return Period(window.per_s, _per_run(cpu[0], cpu[1], window.done), share)


async def overloaded(system: Measured, load: Overload, seconds: float) -> Period:
    """Measure clients that start runs at a rate."""
    async with client() as http, asyncio.TaskGroup() as group:
        while load.refused < MIN_REFUSED:
            await load.offer(http, WARM_S, group)
        before, done, begun = cpu_by_service(system.pids), load.done, time.perf_counter()
        clients = time.process_time()
        await load.offer(http, seconds, group)
        after, done, took_s = cpu_by_service(system.pids), load.done - done, time.perf_counter() - begun
        clients = _of_machine(time.process_time() - clients, took_s)
    return Period(done / took_s, _per_run(before, after, done), clients)


def mean(one: Period, other: Period) -> Period:
    """Return the mean of two periods."""
    cpu = {name: (one.cpu_s[name] + other.cpu_s[name]) / 2 for name in one.cpu_s}
    return Period((one.per_s + other.per_s) / 2, cpu, (one.clients + other.clients) / 2)


def _per_run(before: dict[str, float], after: dict[str, float], runs: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / max(1, runs) for name in before}


def _of_machine(cpu_s: float, took_s: float) -> float:
    return cpu_s / took_s / (os.cpu_count() or 1)


def main(agents: list[int], seconds: float, times: float) -> int:
    good = True
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with model_server() as model:
        for number in agents:
            with running(model, agents=number) as system:
                before = asyncio.run(maximum(system, seconds))
                load = Overload(system.url, times * before.per_s)
                found = asyncio.run(overloaded(system, load, seconds))
                most = mean(before, asyncio.run(maximum(system, seconds)))
            refused = {status for status in load.responses if status.isdigit()}
            share = found.left_per_s / most.left_per_s
            good = good and share >= MIN_SHARE and refused <= {"429"} and not load.silent
            cpu = {name: round(found.cpu_s[name] / max(most.cpu_s[name], 1e-9), 2) for name in most.cpu_s}
            print(
                f"{number} agents: maximum {most.per_s:.1f} runs/s; at {times:g} times the load"
                f" {found.per_s:.1f} runs/s, {found.per_s / most.per_s:.0%}, {share:.0%} without clients"
                f" ({most.clients:.0%} and {found.clients:.0%} of the processors are theirs);"
                f" {dict(load.responses)}, {load.silent} refusals without a time; CPU per run"
                f" {found.cpu_ms / most.cpu_ms:.2f} times ({most.cpu_ms:.0f} ms): {cpu}",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--times", type=float, default=3.0)
    given = parser.parse_args()
    sys.exit(main(given.agents, given.seconds, given.times))
