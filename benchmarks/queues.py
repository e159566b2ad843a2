"""Long queues: what they cost, whom they delay, and how they end.

Run: python -m benchmarks.queues [--one 2400] [--all 10000] [--probe-s 60]

1. One client sends 2,400 messages to one conversation whose run is open. Meanwhile probes start runs, one
   after another, in other conversations of the tenant and of another tenant. Then the conversation ends.
2. One tenant queues 10,000 messages in 100 conversations, and the models reply: probes start runs in idle
   conversations of the tenant while the queue is worked off. Then the conversations are deleted.

A queue longer than the settings permit needs raised limits; the first lines show the refusals without them.
The exit code is 1 if a probe waits longer than 2 s, or a deleted queue is not gone after 30 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from benchmarks.fairness import api_key, key_setting, percentile
from benchmarks.harness.load import client
from benchmarks.harness.processes import cpu_s
from pydantic_core import to_json
from tests.support.chaos.fleet import Fleet
from tests.support.parked import resident_bytes
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel, scripted_model

from banksman.bus import jetstream
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY

FLOOD, OTHER = "flood", "other"
CONVERSATIONS = 100
"""Conversations that share the long queue."""
SENDERS = 16
"""Messages that are sent at a time; each conversation gets its own one after another."""
PAUSE_S = 0.2
"""Seconds between two probes."""
MAX_WAIT_S = 2.0
"""Seconds that a probe may wait for its end."""
GONE_S = 30.0
"""Seconds after which a deleted queue may still occupy an agent."""
CPU_AFTER_S = 5.0
"""Seconds after a deletion in which the CPU time of the agents is measured."""
PROBE, HELD, QUICK = "probe", "held", "quick"


@dataclass
class User:
    """A client of one tenant."""

    http: aiohttp.ClientSession
    url: str
    models: dict[str, str]

    async def post(self, path: str, body: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Return the status and the body of the response to a request."""
        async with self.http.post(f"{self.url}{path}", json=body) as response:
            return response.status, await response.json()

    async def create(self, model: str) -> str:
        """Create a conversation with a scripted model."""
        status, made = await self.post("/context/conversations", {"model": self.models[model]})
        if status != 201:
            raise RuntimeError(f"no conversation: {status} {made}")
        return made["conversation_id"]

    async def send(self, conversation: str) -> tuple[int, dict[str, str]]:
        """Send a message to a conversation."""
        return await self.post(f"/context/conversations/{conversation}/runs", {"content": "go"})

    async def delete(self, conversation: str) -> None:
        """Delete a conversation."""
        async with self.http.delete(f"{self.url}/context/conversations/{conversation}") as response:
            response.raise_for_status()


@dataclass
class Probe:
    """Runs in idle conversations, one after another."""

    user: User
    took_s: list[float] = field(default_factory=list[float])
    failed: Counter[str] = field(default_factory=Counter[str])

    async def once(self) -> None:
        """Execute one run in a new conversation, and record its time; a refusal is counted."""
        conversation = await self.user.create(PROBE)
        begun = time.perf_counter()
        status, run = await self.user.send(conversation)
        if status == 202:
            url = f"{self.user.url}/context/runs/{run['run_id']}?wait_s=60"
            async with self.user.http.get(url) as response:
                run = await response.json()
            self.took_s.append(time.perf_counter() - begun)
        if run.get("status") != "completed":
            self.failed[str(run.get("status", run.get("code", status)))] += 1

    async def repeat(self) -> None:
        """Probe until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(PAUSE_S)

    def __str__(self) -> str:
        if not self.took_s:
            return f"none, {dict(self.failed)}"
        p50, p99 = (percentile(share, self.took_s) for share in (0.5, 0.99))
        failed = f", failed: {dict(self.failed)}" if self.failed else ""
        return (
            f"{len(self.took_s)} probes, p50 {p50:.2f} s, p99 {p99:.2f} s, {max(self.took_s):.2f} s{failed}"
        )

    @property
    def good(self) -> bool:
        return bool(self.took_s) and max(self.took_s) <= MAX_WAIT_S and not self.failed


@asynccontextmanager
async def probing(users: dict[str, User]) -> AsyncGenerator[dict[str, Probe]]:
    """Probe for each user during the block, at least once."""
    probes = {name: Probe(user) for name, user in users.items()}
    tasks = [asyncio.create_task(probe.repeat()) for probe in probes.values()]
    try:
        yield probes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for probe in probes.values():
        await probe.once()


@dataclass
class Bench:
    """A system with two tenants."""

    fleet: Fleet
    model: ScriptedModel
    users: dict[str, User]

    def agents_cpu_s(self) -> list[float]:
        """Return the CPU seconds of each agent."""
        return [cpu_s(pid) for pid in self._agents()]

    def _agents(self) -> list[int]:
        found = [self.fleet[f"agent-{number}"].pid for number in (1, 2)]
        return [pid for pid in found if pid is not None]

    def used(self, before: list[float]) -> str:
        """Return the CPU time of each agent since `before`, and their memory."""
        cpu = " and ".join(
            f"{now - then:.1f} s" for then, now in zip(before, self.agents_cpu_s(), strict=True)
        )
        memory = " and ".join(f"{resident_bytes(pid) / 2**20:.0f} MiB" for pid in self._agents())
        return f"agents: {cpu} of CPU, {memory}"

    async def waiting(self) -> int:
        """Return the work messages of the tenant that no agent has acknowledged."""
        async with self.fleet.operator() as bus:
            return await jetstream.count_below(bus, RUNS, subjects.run_work(FLOOD, ANY))

    async def fill(self, number: int, conversations: list[str]) -> Counter[int]:
        """Send messages to conversations, `SENDERS` of them at a time; return the statuses."""
        statuses: Counter[int] = Counter()
        places = asyncio.Semaphore(SENDERS)

        async def fill_one(conversation: str) -> None:
            async with places:
                for _ in range(number // len(conversations)):
                    status, _ = await self.users[FLOOD].send(conversation)
                    statuses[status] += 1

        async with asyncio.TaskGroup() as group:
            for conversation in conversations:
                group.create_task(fill_one(conversation))
        return statuses

    async def delete(self, conversations: list[str]) -> bool:
        """Delete conversations and print how their queue ends; return whether it ended in time."""
        before, begun = self.agents_cpu_s(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for conversation in conversations:
                group.create_task(self.users[FLOOD].delete(conversation))
        deleted_s = time.perf_counter() - begun

        async def gone() -> bool:
            return not await self.waiting()

        with contextlib.suppress(TimeoutError):
            await eventually(gone, 2 * GONE_S, interval_s=0.1)
        left = await self.waiting()
        gone_s = time.perf_counter() - begun
        print(
            f"  deleted: answered after {deleted_s:.2f} s, {left} messages left after {gone_s:.2f} s;"
            f" {self.used(before)}"
        )
        before = self.agents_cpu_s()
        await asyncio.sleep(CPU_AFTER_S)
        print(f"  the {CPU_AFTER_S:g} s after that: {self.used(before)}", flush=True)
        return not left and gone_s <= GONE_S


async def one_queue(bench: Bench, number: int) -> bool:
    """Measure the queue of one conversation."""
    conversation = await bench.users[FLOOD].create(HELD)
    before, begun = bench.agents_cpu_s(), time.perf_counter()
    async with probing(bench.users) as probes:
        statuses = await bench.fill(number, [conversation])
    print(
        f"{number} messages to one conversation in {time.perf_counter() - begun:.0f} s: {dict(statuses)};"
        f" {bench.used(before)}"
    )
    for name, probe in probes.items():
        print(f"  tenant {name}: {probe}")
    return await bench.delete([conversation]) and all(probe.good for probe in probes.values())


async def all_queues(bench: Bench, number: int, probe_s: float) -> bool:
    """Measure a queue that many conversations share, while it is worked off."""
    conversations = [await bench.users[FLOOD].create(QUICK) for _ in range(CONVERSATIONS)]
    before, begun = bench.agents_cpu_s(), time.perf_counter()
    statuses = await bench.fill(number, conversations)
    print(
        f"{number} messages to {CONVERSATIONS} conversations in {time.perf_counter() - begun:.0f} s:"
        f" {dict(statuses)}; {bench.used(before)}",
        flush=True,
    )
    before = bench.agents_cpu_s()
    async with probing(bench.users) as probes:
        bench.model.open_gate(QUICK)
        await asyncio.sleep(probe_s)
    ended = len(bench.model.requests(QUICK))
    print(f"  worked off for {probe_s:g} s, {ended} model requests; {bench.used(before)}")
    for name, probe in probes.items():
        print(f"  tenant {name}: {probe}")
    return await bench.delete(conversations) and all(probe.good for probe in probes.values())


@asynccontextmanager
async def system(settings: dict[str, str]) -> AsyncGenerator[Bench]:
    """Start a system with two agents and two tenants."""
    keys = to_json([key_setting(name) for name in (FLOOD, OTHER)]).decode()
    common = {"BANKSMAN_GATEWAY__KEYS": keys, "BANKSMAN_GATEWAY__REQUESTS_PER_S": "0"}
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        reply = ScriptedReply(text="Done.")
        models = {
            PROBE: model.play(PROBE, [reply], at_end="repeat"),
            HELD: model.play(HELD, [ScriptedReply(text="Never.", gate=Gate(name=HELD))], at_end="repeat"),
            QUICK: model.play(QUICK, [ScriptedReply(text="Done.", gate=Gate(name=QUICK))], at_end="repeat"),
        }
        async with (
            Fleet(
                Path(place), model.url, agents=2, gateways=1, runners=1, settings=common | settings,
                without=("ledger",),
            ) as fleet,
            client() as flood,
            client() as other,
        ):  # fmt: skip
            sessions = {FLOOD: flood, OTHER: other}
            for name, session in sessions.items():
                session.headers["authorization"] = f"Bearer {api_key(name)}"
            users = {name: User(session, fleet.urls[0], models) for name, session in sessions.items()}
            bench = Bench(fleet, model, users)
            for user in users.values():
                alone = Probe(user)
                for _ in range(10):
                    await alone.once()
                print(f"alone: {alone}", flush=True)
            yield bench


async def main(one: int, all_: int, probe_s: float) -> int:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    print("with the default limits:")
    async with system({}) as bench:
        good = await one_queue(bench, one)
    print("with limits above the queues:")
    limits = {
        "BANKSMAN_GATEWAY__MAX_QUEUED_PER_CONVERSATION": str(one + all_),
        "BANKSMAN_GATEWAY__MAX_WAITING_RUNS": str(4 * (one + all_)),
        "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(2 * (one + all_)),
    }
    async with system(limits) as bench:
        good = await one_queue(bench, one) and good
        good = await all_queues(bench, all_, probe_s) and good
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", type=int, default=2_400)
    parser.add_argument("--all", type=int, default=10_000, dest="all_")
    parser.add_argument("--probe-s", type=float, default=60.0)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.one, given.all_, given.probe_s)))
