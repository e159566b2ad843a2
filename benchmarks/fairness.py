"""One tenant floods, nine others work: the times of their runs, alone and beside the flood.

Run: python -m benchmarks.fairness [--seconds 60]

The flood is one tenant that starts long runs as fast as it may, with long model requests and long commands:
more than the agent has slots, the runner commands, and its part of the queue places. Each of the nine runs a
command between two short model requests, one run after another. Exits with 1 if the p99 of their runs beside
the flood is more than 1.5 times that without it, or if any of them fails.
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
from tests.support.system import scripted_model

from banksman.model_server import Reply, ToolCall

QUIET = 9
SHORT_S, LONG_S = 0.3, 20.0
"""Seconds that the model takes for a reply, for the nine and for the flood."""
COMMAND_S = 60
PAUSE_S = 1.0
"""Seconds between two runs of a quiet tenant."""
AT_ONCE = 300
"""Runs that the flood starts first, before the others are measured."""
THEN_PER_S = 5.0
MAY_WAIT = 250
RATIO = 1.5


def token(tenant: str) -> str:
    """Return the key of a tenant."""
    return f"key-of-{tenant}"


def key(tenant: str) -> dict[str, str]:
    """Return a tenant's key as the gateway's settings have it."""
    return {"sha256": hashlib.sha256(token(tenant).encode()).hexdigest(), "tenant": tenant, "user": tenant}


TENANTS = ["flood", *(f"quiet{number}" for number in range(QUIET))]
SETTINGS = {
    "BANKSMAN_GATEWAY__KEYS": json.dumps([key(tenant) for tenant in TENANTS]),
    "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(MAY_WAIT),
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
        """Create its assistant, whose calls need no approval."""
        headers = {"authorization": f"Bearer {token(name)}"}
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
        """Run one run after another; record the time of each."""
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
        """Start runs without end."""
        while True:
            replies[(await self.start()).status_code] += 1
            await asyncio.sleep(1 / THEN_PER_S)


def p(share: float, took_s: list[float]) -> float:
    """Return a percentile of times, in seconds."""
    return sorted(took_s)[min(len(took_s) - 1, int(len(took_s) * share))]


def report(name: str, tenants: list[Tenant]) -> float:
    """Print the times of the quiet tenants; return their p99 in seconds."""
    took_s = [one for tenant in tenants for one in tenant.took_s]
    endings = sum((tenant.endings for tenant in tenants), Counter[str]())
    p99 = p(0.99, took_s)
    print(
        f"{name}: {len(took_s)} runs {dict(endings)}, p50 {p(0.5, took_s):.3f} s, p99 {p99:.3f} s", flush=True
    )
    return p99


async def measured(url: str, quick: str, slow: str, seconds: float) -> bool:
    """Measure the nine without the flood and beside it; return whether the flood delays them too little."""
    async with AsyncExitStack() as stack:
        flood = await stack.enter_async_context(Tenant.connected(url, "flood", slow))
        quiet = [
            await stack.enter_async_context(Tenant.connected(url, name, quick))
            for name in TENANTS
            if name != "flood"
        ]
        await worked(quiet, seconds)
        alone = report("alone", quiet)
        replies = Counter([(await flood.start()).status_code for _ in range(AT_ONCE)])
        flooding = asyncio.create_task(flood.flood(replies))
        await worked(quiet, seconds)
        beside = report("beside the flood", quiet)
        flooding.cancel()
        await asyncio.wait({flooding})
    print(f"the flood's starts: {dict(replies)}; p99 beside it is {beside / alone:.2f} times that alone")
    return beside <= RATIO * alone and all(set(one.endings) == {"completed"} for one in quiet)


async def worked(tenants: list[Tenant], seconds: float) -> None:
    """Let tenants work at the same time."""
    async with asyncio.TaskGroup() as group:
        for tenant in tenants:
            group.create_task(tenant.work(seconds))


async def main(seconds: float) -> int:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        command = ToolCall(name="bash", arguments={"command": "true"})
        long = ToolCall(name="bash", arguments={"command": f"sleep {COMMAND_S}", "timeout_s": 2 * COMMAND_S})
        done = Reply(text="Done.", first_delay_s=SHORT_S)
        quick = model.play("quick", [Reply(tool_calls=(command,), first_delay_s=SHORT_S), done])
        slow = model.play("slow", [Reply(tool_calls=(long,), first_delay_s=LONG_S), done])
        async with Fleet(
            Path(place), model.url, agents=1, gateways=1, runners=1, settings=SETTINGS, without=("ledger",)
        ) as fleet:
            return 0 if await measured(fleet.urls[0], quick, slow, seconds) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    sys.exit(asyncio.run(main(parser.parse_args().seconds)))
