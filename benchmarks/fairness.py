"""Fairness: the run times of nine tenants, alone and while a tenth tenant floods the system.

Run: python -m benchmarks.fairness [--seconds 60]

The flood is one tenant that starts long runs as fast as permitted, with long model requests and long
commands. They exceed the agent's slots, the runner's concurrent commands, and the tenant's share of the
queue. Each of the nine tenants runs a command between two short model requests, one run after another. The
exit code is 1 if the p99 of their runs during the flood exceeds 1.5 times that without the flood, or if any
of their runs fails.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.support.chaos.fleet import Fleet
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import scripted_model

QUIET_TENANTS = 9
SHORT_S, LONG_S = 0.3, 20.0
"""Seconds of a model reply, for the nine tenants and for the flood."""
COMMAND_S = 60
PAUSE_S = 1.0
"""Seconds between two runs of a quiet tenant."""
FIRST_FLOOD_RUNS = 300
"""Runs that the flood starts before the other tenants are measured."""
FLOOD_RUNS_PER_S = 5.0
MAX_WAITING_RUNS = 250
MAX_P99_RATIO = 1.5


def api_key(tenant: str) -> str:
    """Return the API key of a tenant."""
    return f"key-of-{tenant}"


def key_setting(tenant: str) -> dict[str, str]:
    """Return a tenant's key in the format of the gateway's settings."""
    return {"sha256": hashlib.sha256(api_key(tenant).encode()).hexdigest(), "tenant": tenant, "user": tenant}


TENANTS = ["flood", *(f"quiet{number}" for number in range(QUIET_TENANTS))]
SETTINGS = {
    "BANKSMAN_GATEWAY__KEYS": json.dumps([key_setting(tenant) for tenant in TENANTS]),
    "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(MAX_WAITING_RUNS),
}


@dataclass
class Tenant:
    """A client with the key of one tenant."""

    http: httpx.AsyncClient
    model: str
    took_s: list[float] = field(default_factory=list[float])
    endings: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, name: str, model: str) -> AsyncGenerator[Tenant]:
        """Create the tenant's assistant, whose calls need no approval."""
        headers = {"authorization": f"Bearer {api_key(name)}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
            assistant = {
                "id": "works",
                "model": model,
                "tools": {"enabled": True, "allowed_tools": ["bash"]},
                "approval_policy": [{"tool": "*", "action": "auto"}],
            }
            (await http.post("/context/assistants", json=assistant)).raise_for_status()
            yield cls(http, model)

    async def start(self) -> httpx.Response:
        """Start a run in a new conversation."""
        made = await self.http.post("/context/conversations", json={"assistant": "works"})
        if made.status_code != 201:
            return made
        url = f"/context/conversations/{made.json()['conversation_id']}/runs"
        return await self.http.post(url, json={"content": "go"})

    async def work(self, seconds: float) -> None:
        """Execute runs sequentially; record the time and the outcome of each."""
        self.took_s.clear()
        self.endings.clear()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            begun = time.perf_counter()
            started = await self.start()
            self.endings[await self._ending(started)] += 1
            self.took_s.append(time.perf_counter() - begun)
            await asyncio.sleep(PAUSE_S)

    async def _ending(self, started: httpx.Response) -> str:
        if started.status_code != 202:
            return str(started.status_code)
        url = f"/context/runs/{started.json()['run_id']}"
        return str((await self.http.get(url, params={"wait_s": 30})).json()["status"])

    async def flood(self, replies: Counter[int]) -> None:
        """Start runs until cancelled."""
        while True:
            replies[(await self.start()).status_code] += 1
            await asyncio.sleep(1 / FLOOD_RUNS_PER_S)


def percentile(share: float, took_s: list[float]) -> float:
    """Return a percentile of durations in seconds."""
    return sorted(took_s)[min(len(took_s) - 1, int(len(took_s) * share))]


def report(name: str, tenants: list[Tenant]) -> float:
    """Print the times of the quiet tenants; return their p99 in seconds."""
    took_s = [one for tenant in tenants for one in tenant.took_s]
    endings = sum((tenant.endings for tenant in tenants), Counter[str]())
    p99 = percentile(0.99, took_s)
    print(
        f"{name}: {len(took_s)} runs {dict(endings)}, p50 {percentile(0.5, took_s):.3f} s, p99 {p99:.3f} s",
        flush=True,
    )
    return p99


async def measure(url: str, quick: str, slow: str, seconds: float) -> bool:
    """Measure the nine tenants without and with the flood; return whether their p99 is within the limit."""
    async with AsyncExitStack() as stack:
        flood = await stack.enter_async_context(Tenant.connected(url, "flood", slow))
        quiet = [
            await stack.enter_async_context(Tenant.connected(url, name, quick))
            for name in TENANTS
            if name != "flood"
        ]
        await work_concurrently(quiet, seconds)
        alone = report("alone", quiet)
        replies = Counter([(await flood.start()).status_code for _ in range(FIRST_FLOOD_RUNS)])
        flooding = asyncio.create_task(flood.flood(replies))
        await work_concurrently(quiet, seconds)
        during = report("during the flood", quiet)
        flooding.cancel()
        await asyncio.wait({flooding})
    print(f"the flood's starts: {dict(replies)}; p99 during the flood: {during / alone:.2f} times that alone")
    return during <= MAX_P99_RATIO * alone and all(set(one.endings) == {"completed"} for one in quiet)


async def work_concurrently(tenants: list[Tenant], seconds: float) -> None:
    """Let all tenants work concurrently."""
    async with asyncio.TaskGroup() as group:
        for tenant in tenants:
            group.create_task(tenant.work(seconds))


async def main(seconds: float) -> int:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        command = ScriptedCall(name="bash", arguments={"command": "true"})
        long = ScriptedCall(
            name="bash", arguments={"command": f"sleep {COMMAND_S}", "timeout_s": 2 * COMMAND_S}
        )
        done = ScriptedReply(text="Done.", first_delay_s=SHORT_S)
        quick = model.play("quick", [ScriptedReply(tool_calls=(command,), first_delay_s=SHORT_S), done])
        slow = model.play("slow", [ScriptedReply(tool_calls=(long,), first_delay_s=LONG_S), done])
        async with Fleet(
            Path(place), model.url, agents=1, gateways=1, runners=1, settings=SETTINGS, without=("ledger",)
        ) as fleet:
            return 0 if await measure(fleet.urls[0], quick, slow, seconds) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    sys.exit(asyncio.run(main(parser.parse_args().seconds)))
