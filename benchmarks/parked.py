"""Runs that wait for a person: what 100,000 of them cost, and how fast one of them goes on.

Run: python benchmarks/parked.py [--runs 100000] [--by-agents 5000] [--decisions 500]

The first are parked by a real agent, which does some tens a second; the rest are stored as their exact
copies with ids of their own (log, question, timer), as after ten minutes, when the server has forgotten their
message ids. The server syncs every write but while copies are stored. Targets: its memory grows by less
than 100 MiB, an agent's by less than 1 MB for 1,000 runs, and from a decision to the claim of the agent that
goes on it takes less than 50 ms at p99.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from banksman.testing.chaos.fleet import Fleet
from banksman.testing.parked import (
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
from banksman.testing.system import scripted_model

MIB = 1024 * 1024
SERVER_GROWTH_MIB = 100
AGENT_MB_PER_1000 = 1.0
CONTINUES_MS = 50.0
GIVES_BACK_S = 150.0
"""Seconds after which the runtime of the server has given back what it needed for its start."""
SYNCED, UNSYNCED = "sync_interval: always", "sync_interval: 2m"


async def main(runs: int, by_agents: int, decisions: int) -> int:
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        async with Fleet(Path(place), model.url, agents=1, gateways=1, runners=1) as fleet:
            name = script(model)
            agents = await _by_agents(fleet, name, by_agents)
            copies, growth = await _copies(fleet, agents[0][0], runs - by_agents)
            waits = await _decide(fleet, [*agents[0], *copies], decisions)
            await _restart(fleet)
    p99 = _percentile([one.claimed_s for one in waits], 0.99) * 1000
    ok = growth < SERVER_GROWTH_MIB and agents[1] < AGENT_MB_PER_1000 and p99 < CONTINUES_MS
    print("all targets reached" if ok else "a target was missed")
    return 0 if ok else 1


async def _by_agents(fleet: Fleet, name: str, number: int) -> tuple[list[Parked], float]:
    """Park by agents; the runs, and what the agent's memory grew by for 1,000 of them, in MB."""
    # Its cache of folded conversations fills first; that is bounded, however many runs there are.
    found = await park_by_agents(fleet, name, number // 2)
    before = _memory(fleet, "agent-1")
    begun = time.perf_counter()
    more = await park_by_agents(fleet, name, number - number // 2)
    growth = (_memory(fleet, "agent-1") - before) / 1e6 / (len(more) / 1000)
    rate = len(more) / (time.perf_counter() - begun)
    print(f"parked by an agent: {number} at {rate:.0f}/s; its memory +{growth:.2f} MB for 1,000")
    return [*found, *more], growth


async def _copies(fleet: Fleet, original: Parked, number: int) -> tuple[list[Parked], float]:
    """Store copies; the runs, and what the server's memory grew by, in MiB."""
    await _sync(fleet, SYNCED, UNSYNCED)
    async with fleet.operator() as bus:
        before, stored = _memory(fleet, "nats"), await stored_bytes(bus)
        begun = time.perf_counter()
        copies = await park_copies(bus, original, number)
        took_s = time.perf_counter() - begun
        each = (await stored_bytes(bus) - stored) / max(1, number)
        busy = _memory(fleet, "nats")
    await _sync(fleet, UNSYNCED, SYNCED)
    await asyncio.sleep(GIVES_BACK_S)
    growth = (_memory(fleet, "nats") - before) / MIB
    print(f"copied: {number} in {took_s:.0f} s, {each:.0f} bytes each on disk")
    print(f"server: {before / MIB:.0f} MiB before, {busy / MIB:.0f} then, {growth:+.0f} MiB after a restart")
    for name in ("gateway-1", "agent-1"):
        print(f"{name}: {_memory(fleet, name) / MIB:.0f} MiB")
    return copies, growth


async def _decide(fleet: Fleet, parked: list[Parked], number: int) -> list[Continuation]:
    async with fleet.operator() as bus:
        print(f"held for consumers: {await held(bus)}")
        chosen = random.Random(1).sample(parked, number)
        waits = [await decide(fleet, bus, one) for one in chosen]
    claimed = [one.claimed_s for one in waits]
    answered = [one.decided_s for one in waits]
    print(
        f"decision to continuation: p50 {_percentile(claimed, 0.5) * 1000:.1f} ms,"
        f" p99 {_percentile(claimed, 0.99) * 1000:.1f} ms;"
        f" decision to answer: p50 {_percentile(answered, 0.5) * 1000:.1f} ms"
    )
    return waits


async def _restart(fleet: Fleet) -> None:
    """How long each process takes to be ready again."""
    for name in ("nats", "agent-1", "gateway-1"):
        begun = time.perf_counter()
        starts = fleet[name].starts
        await fleet[name].restart()
        await fleet[name].begun(starts + 1)
        await fleet[name].ready(fleet.http)
        print(f"restart of {name}: ready after {time.perf_counter() - begun:.1f} s")
    await fleet.nats.provision()
    await fleet.ready()


async def _sync(fleet: Fleet, now: str, then: str) -> None:
    file = fleet.nats.config_file
    file.write_text(file.read_text(encoding="utf-8").replace(now, then), encoding="utf-8")
    starts = fleet["nats"].starts
    await fleet["nats"].restart()
    await fleet["nats"].begun(starts + 1)
    await fleet["nats"].ready(fleet.http)
    await fleet.ready()


def _memory(fleet: Fleet, name: str) -> int:
    pid = fleet[name].pid
    assert pid is not None
    return resident_bytes(pid)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--by-agents", type=int, default=5_000)
    parser.add_argument("--decisions", type=int, default=500)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.runs, given.by_agents, given.decisions)))
