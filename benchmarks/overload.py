"""Overload: at three times the agents' capacity, every accepted run ends, and every other request is refused.

Run: python benchmarks/overload.py [--seconds 300] [--times 3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.support.chaos.fleet import Fleet
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, scripted_model

SLOTS = 8
MODEL_S = 0.5
"""Seconds of a model reply, long enough that the slots and not this machine limit the capacity."""
MAX_WAITING_RUNS = 60
SETTINGS = {
    "BANKSMAN_AGENT__SLOTS": str(SLOTS),
    "BANKSMAN_GATEWAY__MAX_WAITING_RUNS_PER_TENANT": str(MAX_WAITING_RUNS),
}
NO_RESPONSE = 0
NORMAL_S = 20.0
# The gateway closes connections that were idle for 5 s; a request in flight at that moment would be lost.
CONNECTIONS = httpx.Limits(max_connections=400, keepalive_expiry=2.0)
MAX_P99_RATIO = 2.0
"""Maximum ratio of the acceptance times under overload and at a third of the capacity."""


@dataclass(frozen=True, slots=True)
class Response:
    """The response to the start of a run."""

    status: int
    took_s: float
    run_id: str | None
    retry_after: bool


@dataclass
class Users:
    """Users that start runs, each in its own conversation."""

    http: httpx.AsyncClient
    model: str

    async def start(self) -> Response:
        """Start a run; only the request for the start is timed."""
        begun = time.perf_counter()
        try:
            made = await self.http.post("/context/conversations", json={"model": self.model})
            url = f"/context/conversations/{made.json()['conversation_id']}/runs"
            begun = time.perf_counter()
            response = await self.http.post(url, json={"content": "go"})
        except httpx.TransportError:
            return Response(NO_RESPONSE, time.perf_counter() - begun, None, retry_after=False)
        took_s = time.perf_counter() - begun
        run_id = response.json()["run_id"] if response.status_code == 202 else None
        return Response(response.status_code, took_s, run_id, "retry-after" in response.headers)

    async def capacity(self, seconds: float) -> float:
        """Return the completed runs per second while all slots of the agents are in use."""
        ends = time.perf_counter() + seconds
        done = 0

        async def run_in_sequence() -> None:
            nonlocal done
            while time.perf_counter() < ends:
                await self.wait_for_end(await self.start())
                done += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(SLOTS):
                group.create_task(run_in_sequence())
        return done / seconds

    async def offer(self, rate: float, seconds: float) -> list[Response]:
        """Start `rate` runs per second for `seconds`, regardless of the responses."""
        begun, tasks = time.perf_counter(), list[asyncio.Task[Response]]()
        async with asyncio.TaskGroup() as group:
            while (passed := time.perf_counter() - begun) < seconds:
                tasks.append(group.create_task(self.start()))
                await asyncio.sleep(max(0.0, len(tasks) / rate - passed))
        return [task.result() for task in tasks]

    async def wait_for_end(self, response: Response) -> str:
        """Wait for the end of an accepted run and return its status."""
        for _ in range(20):
            run = (await self.http.get(f"/context/runs/{response.run_id}", params={"wait_s": 30})).json()
            if run.get("finished_at") is not None:
                return str(run["status"])
        return "open"


async def main(seconds: float, times: float) -> int:
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        async with (
            Fleet(Path(place), model.url, agents=1, gateways=1, runners=1, settings=SETTINGS) as fleet,
            httpx.AsyncClient(
                base_url=fleet.urls[0], timeout=120, trust_env=False, limits=CONNECTIONS
            ) as http,
        ):
            return await measure(Users(http, scripted(model)), seconds, times)


def scripted(model: ScriptedModel) -> str:
    return model.play("thinks", [ScriptedReply(text="Done.", first_delay_s=MODEL_S)], at_end="repeat")


async def measure(users: Users, seconds: float, times: float) -> int:
    capacity = await users.capacity(NORMAL_S)
    normal = [one for one in await users.offer(capacity / 3, NORMAL_S) if one.run_id is not None]
    for one in normal:
        await users.wait_for_end(one)
    begun = time.perf_counter()
    responses = await users.offer(capacity * times, seconds)
    offered_s = time.perf_counter() - begun
    accepted = [one for one in responses if one.run_id is not None]
    refused = [one for one in responses if one.run_id is None]
    endings = Counter([await users.wait_for_end(one) for one in accepted])
    drained_s = time.perf_counter() - begun - offered_s
    again = await users.start()

    kinds = dict(Counter(one.status for one in refused))
    silent = sum(not one.retry_after for one in refused)
    usual, under_load = p99(normal), p99(accepted)
    print(
        f"agents execute {capacity:.1f} runs/s; {len(responses) / offered_s:.1f}/s requested"
        f" for {offered_s:.0f} s"
    )
    print(
        f"accepted {len(accepted)}, refused {len(refused)} ({len(refused) / len(responses):.0%}) with {kinds}"
    )
    print(f"{silent} refusals without Retry-After")
    print(
        f"p99 of an acceptance: {under_load * 1000:.0f} ms, {usual * 1000:.0f} ms at a third of the capacity"
    )
    print(f"of the accepted {dict(endings)}, the last {drained_s:.1f} s after the load; then {again.status}")
    promised = endings == {"completed": len(accepted)} and set(kinds) <= {429, 503} and not silent
    return 0 if promised and again.status == 202 and under_load <= MAX_P99_RATIO * usual else 1


def p99(responses: list[Response]) -> float:
    took = sorted(one.took_s for one in responses)
    return took[min(len(took) - 1, int(len(took) * 0.99))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--times", type=float, default=3.0)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.seconds, given.times)))
