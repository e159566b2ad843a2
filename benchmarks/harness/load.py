"""Load: a fixed number of requests in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from benchmarks.harness.scripts import FINAL

Work = Callable[[], Awaitable[None]]
"""Executes one unit of work, or raises."""


@dataclass(slots=True)
class Window:
    """A period under load."""

    done: int = 0
    """Units of work that ended within the period."""
    took_s: list[float] = field(default_factory=list[float])
    """Their durations in seconds, including time before the period."""
    length_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Units of work per second."""
        return self.done / self.length_s

    def percentile_ms(self, share: float) -> float:
        """Return a percentile of the durations in milliseconds."""
        ordered = sorted(self.took_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def under_load(
    work: Work, in_flight: int, seconds: float, *, begins: Callable[[], None], ends: Callable[[], None]
) -> Window:
    """Do work with `in_flight` units at a time; return the units that ended in a period of at least
    `seconds`.

    The period begins after the first `in_flight` units have ended, when ends follow each other evenly: each
    end in the period counts as one unit, even if it began earlier. The period lasts until at least
    `in_flight` units have ended. `begins` and `ends` are called at its limits.
    """
    window, warm, ended = Window(), asyncio.Semaphore(0), asyncio.Semaphore(0)
    over = measuring = False

    async def repeat() -> None:
        while not over:
            begun = time.perf_counter()
            await work()
            warm.release()
            if measuring:
                ended.release()
                window.done += 1
                window.took_s.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(repeat())
        for _ in range(in_flight):
            await warm.acquire()
        begins()
        begun, measuring = time.perf_counter(), True
        await asyncio.sleep(seconds)
        for _ in range(in_flight):
            await ended.acquire()
        window.length_s, measuring = time.perf_counter() - begun, False
        ends()
        over = True
    return window


class Runs:
    """A client that starts one run per call and waits for its outcome, over HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str, assistant: str) -> None:
        self._http = http
        self._url = f"{url}/v1/chat?wait_s=60"
        self._body = {"content": "Add the numbers.", "assistant": assistant}

    async def __call__(self) -> None:
        """Execute one run in its own conversation.

        Raises:
            RuntimeError: The run did not complete with the last reply of its script.
        """
        async with self._http.post(self._url, json=self._body) as response:
            run = await response.json()
        if run.get("status") != "completed" or run.get("content") != FINAL:
            raise RuntimeError(f"a run did not complete: {run}")


def client() -> aiohttp.ClientSession:
    """Return an HTTP client with a connection for each request in flight."""
    # The gateway closes connections that were idle for 5 s; a request in flight at that moment would be lost.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120))
