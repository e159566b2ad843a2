"""Parked runs: the cost of 100,000 runs that wait for a user, and the time until one continues.

Run: python benchmarks/parked.py [--runs 100000] [--by-agents 4000] [--decisions 1000] [--rest 310]

A real agent parks some of the runs. The others are stored directly as replicas of a parked run with their own
ids (log, approval request, timer), in the state after ten minutes, when the server has dropped the message
ids. The server does not sync writes while runs are parked, and syncs every write afterwards. The benchmark
prints the measurements and whether each target was reached, and always exits with 0.

Targets: nats-server grows by less than 100 MiB, an agent by less than 1 MB per 1,000 runs, and the p99 of the
time from a decision to the claim by the continuing agent is less than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos.fleet import Fleet
from tests.support.parked import (
    Continuation,
    Parked,
    decide,
    held,
    park_by_agents,
    park_copies,
    resident_bytes,
    script,
    stored_bytes,
)
from tests.support.server_memory import ServerMemory, server_memory
from tests.support.system import scripted_model

from banksman.cli.machine import free_port
from banksman.runs.conversation_log import CACHED_CONVERSATIONS

MIB = 1024 * 1024
SERVER_GROWTH_MIB = 100
AGENT_MB_PER_1000 = 1.0
CONTINUES_MS = 50.0
WARM_RUNS, WARM_DECISIONS = 50, 100
INDEXED_S = 130.0
"""Seconds after which the server drops the index of unused blocks."""
RELEASE_S = 15.0
"""Seconds until the server's runtime returns free memory to the system."""
SYNCED, UNSYNCED = 'sync_interval: "always"', 'sync_interval: "2m"'


@dataclass(frozen=True, slots=True)
class Sizes:
    """The parameters of a measurement."""

    runs: int
    by_agents: int
    decisions: int
    rest_s: float
    """Seconds after the last run. After `INDEXED_S` the server drops the index of the blocks that were
    written or read last, and after 300 the state of replies that clients could still send."""


class Bench:
    """A system whose server reports its memory by kind."""

    def __init__(self, place: Path, model_url: str, sizes: Sizes) -> None:
        settings = {"BANKSMAN_ALLOW_WEAK_DURABILITY": "true"}
        self.fleet = Fleet(place, model_url, agents=1, gateways=1, runners=1, settings=settings)
        self.sizes = sizes
        self._prof_port = free_port()
        self._configure("server_name:", f"prof_port: {self._prof_port}\nserver_name:")
        self._configure(SYNCED, UNSYNCED)

    async def run(self, model: str) -> None:
        """Park runs, measure the server at rest, restart it, decide approvals, and restart the services."""
        sizes = self.sizes
        original, *_ = await park_by_agents(self.fleet, model, WARM_RUNS)
        empty = await self._server()
        print(f"an empty system: nats-server {empty.resident / MIB:.0f} MiB", flush=True)
        copies = await self._copies(original, sizes.runs - sizes.by_agents)
        by_agents, agent_mb = await self._by_agents(model)
        rested = await self._measure_at_rest("parked", model, empty, sizes.rest_s)
        self._configure(UNSYNCED, SYNCED)
        await self._restart("nats")
        restarted = await self._measure_at_rest("restarted", model, empty, min(sizes.rest_s, INDEXED_S))
        claimed = await self._decide([*by_agents, *copies])
        for name in ("agent-1", "gateway-1"):
            await self._restart(name)
        growth = (rested - empty.resident) / MIB
        _judge("nats-server", growth, SERVER_GROWTH_MIB, "MiB")
        _judge("nats-server after a restart", (restarted - empty.resident) / MIB, SERVER_GROWTH_MIB, "MiB")
        _judge("an agent for 1,000 runs", agent_mb, AGENT_MB_PER_1000, "MB")
        _judge("decision to continuation, p99", claimed, CONTINUES_MS, "ms")

    async def _by_agents(self, model: str) -> tuple[list[Parked], float]:
        """Let an agent park runs; return them, and its memory growth in MB per 1,000 runs."""
        # The first half fills the agent's cache of folded conversations, which has a limited size.
        number = self.sizes.by_agents
        begun = time.perf_counter()
        found = await park_by_agents(self.fleet, model, number // 2)
        before = self._memory("agent-1")
        more = await park_by_agents(self.fleet, model, number - number // 2)
        growth = (self._memory("agent-1") - before) / 1e6 / (len(more) / 1000)
        rate = number / (time.perf_counter() - begun)
        full = "" if number // 2 >= CACHED_CONVERSATIONS else ", while its cache fills"
        print(f"parked by an agent: {number} at {rate:.0f}/s; its memory +{growth:.2f} MB for 1,000{full}")
        return [*found, *more], growth

    async def _copies(self, original: Parked, number: int) -> list[Parked]:
        async with self.fleet.operator() as bus:
            stored, begun = await stored_bytes(bus), time.perf_counter()
            copies = await park_copies(bus, original, number)
            took_s = time.perf_counter() - begun
            each = (await stored_bytes(bus) - stored) / max(1, number)
            print(f"copied: {number} in {took_s:.0f} s, {each:.0f} bytes each on disk")
            print(f"held for consumers: {await held(bus)}", flush=True)
        return copies

    async def _measure_at_rest(self, what: str, model: str, empty: ServerMemory, rest_s: float) -> int:
        """Return the server's resident bytes after a pause, and print the live bytes by kind."""
        busy = self._memory("nats")
        await asyncio.sleep(rest_s)
        rested = self._memory("nats")
        # The server drops the state of permitted replies when it sends the client another message.
        await park_by_agents(self.fleet, model, WARM_RUNS)
        # The server closes blocks that were unused for ten seconds.
        await asyncio.sleep(RELEASE_S)
        # A profile forces a garbage collection; the second one also frees memory that the first kept for
        # reuse.
        for _ in range(2):
            await self._server()
        await asyncio.sleep(RELEASE_S)
        memory = await self._server()
        print(
            f"{what}: nats-server {busy / MIB:.0f} MiB, after {rest_s:.0f} s {rested / MIB:.0f},"
            f" then {memory.resident / MIB:.0f}: live {memory.live / MIB:.0f}, spare {memory.spare / MIB:.0f}"
        )
        for name, size in memory.parts.items():
            print(f"  {(size - empty.parts[name]) / MIB:+4.0f} MiB live: {name}", flush=True)
        return memory.resident

    async def _decide(self, parked: list[Parked]) -> float:
        """Decide approvals sequentially; return the p99 of the time to the continuation in ms."""
        most = 0
        waits: list[Continuation] = []
        chosen = random.Random(1).sample(parked, WARM_DECISIONS + self.sizes.decisions)
        # Excludes the benchmark's own list of runs from garbage collections during the measurement.
        gc.freeze()
        load = os.getloadavg()[0]
        async with self.fleet.operator() as bus:
            for one in chosen:
                waits.append(await decide(self.fleet, bus, one))
                if not len(waits) % 50:
                    most = max(most, self._memory("nats"))
        claimed = [one.claimed_s for one in waits[WARM_DECISIONS:]]
        responses = [one.decided_s for one in waits[WARM_DECISIONS:]]
        print(f"load average {load:.1f} before {len(claimed)} decisions, {os.getloadavg()[0]:.1f} after")
        print(
            f"decision to continuation: {_percentiles(claimed)};"
            f" decision to response: {_percentiles(responses)}"
        )
        print(
            f"nats-server meanwhile: up to {most / MIB:.0f} MiB, with the blocks it has read from", flush=True
        )
        return _percentile(claimed, 0.99) * 1000

    async def _restart(self, name: str) -> None:
        """Restart a process, and print the time until it is ready."""
        member = self.fleet[name]
        begun, starts = time.perf_counter(), member.starts
        await member.restart()
        await member.begun(starts + 1)
        await member.ready()
        print(f"restart of {name}: ready after {time.perf_counter() - begun:.1f} s", flush=True)
        await self.fleet.ready()

    async def _server(self) -> ServerMemory:
        pid = self.fleet["nats"].pid
        assert pid is not None
        return await server_memory(pid, self._prof_port)

    def _memory(self, name: str) -> int:
        pid = self.fleet[name].pid
        assert pid is not None
        return resident_bytes(pid)

    def _configure(self, now: str, then: str) -> None:
        file = self.fleet.nats.data.nats_config_file
        text = file.read_text(encoding="utf-8")
        assert now in text, f"{now} is not in {file}"
        file.write_text(text.replace(now, then), encoding="utf-8")


async def main(sizes: Sizes) -> None:
    print(f"{sizes.runs} runs; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), model.url, sizes)
        async with bench.fleet:
            await bench.run(script(model))


def _judge(what: str, found: float, most: float, unit: str) -> None:
    print(f"{'reached' if found < most else 'MISSED'}: {what}: {found:.1f} {unit} (target {most:g})")


def _percentiles(values: list[float]) -> str:
    return ", ".join(f"p{share} {_percentile(values, share / 100) * 1000:.1f} ms" for share in (50, 90, 99))


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--by-agents", type=int, default=4_000)
    parser.add_argument("--decisions", type=int, default=1_000)
    parser.add_argument(
        "--rest", type=float, default=310.0, help="seconds without load before the server is measured"
    )
    given = parser.parse_args()
    asyncio.run(main(Sizes(given.runs, given.by_agents, given.decisions, given.rest)))
