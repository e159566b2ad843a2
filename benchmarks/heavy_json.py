"""Heavy JSON: the response times of other tenants, alone and while one tenant sends it.

Run: python -m benchmarks.heavy_json [--seconds 20]

The attacks come from a process of their own, with low priority: each second twelve concurrent bodies of
10 MB, to an operation and to passthrough; and websockets that send frames of 160 KB of deep, wide, and just
accepted JSON, as fast as the rate of frames permits. Rounds with and without the attack alternate, because
other work of the machine changes the times. The exit code is 1 if the p99 of the other tenants during an
attack exceeds 1.5 times that without it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from benchmarks.fairness import MAX_P99_RATIO, SETTINGS, TENANTS, api_key, percentile
from tests.support.chaos.fleet import Fleet
from tests.support.system import scripted_model
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

BODY_BYTES, FRAME_BYTES = 10_000_000, 160_000
BODIES, SOCKETS = 12, 4
FRAMES_PER_S = 30
PAUSE_S = 0.02
ROUNDS = 6
QUIET = [name for name in TENANTS if name != "flood"][:4]


def nested(size: int) -> bytes:
    """Return JSON of about `size` bytes in lists within each other, 120 deep."""
    return b"[%s0]" % (b"%s%s," % (b"[" * 120, b"]" * 120) * (size // 241))


def wide(size: int) -> bytes:
    return b"[%s0]" % (b"[]," * (size // 3))


def accepted(size: int) -> bytes:
    """Return JSON with almost as many values as are accepted."""
    return b"[%s0]" % (b'"%s",' % (b"x" * max(1, size // 19_000 - 3)) * 19_000)


SHAPES: tuple[Callable[[int], bytes], ...] = (nested, wide, accepted)


def send_bodies(url: str, path: str, make: Callable[[int], bytes]) -> None:
    """Send bodies until the process ends."""
    address = urlsplit(url)
    body = b'{"model": "m", "title": %s}' % make(BODY_BYTES)
    headers = {"authorization": f"Bearer {api_key('flood')}", "content-type": "application/json"}
    while True:
        client = http.client.HTTPConnection(address.hostname or "", address.port)
        try:
            client.request("POST", path, body, headers)
            client.getresponse().read()
        except OSError:
            pass  # The response may arrive before the body was sent.
        client.close()
        time.sleep(1 - time.time() % 1)


def send_frames(url: str, make: Callable[[int], bytes]) -> None:
    """Send frames over new websockets until the process ends."""
    frame = f'{{"type": "ping", "id": "f", "t": {make(FRAME_BYTES).decode()}}}'
    hello = json.dumps({"type": "hello", "id": "h", "token": api_key("flood")})
    while True:
        try:
            with connect(f"{url.replace('http', 'ws', 1)}/ws", max_queue=None) as socket:
                socket.send(hello)
                while True:
                    socket.send(frame)
                    time.sleep(1 / FRAMES_PER_S)
        except (ConnectionClosed, OSError):
            time.sleep(0.1)


def bodies(url: str) -> None:
    paths = ("/context/conversations", "/v1/chat/completions")
    _in_threads([(send_bodies, (url, paths[n % 2], SHAPES[n % 3])) for n in range(BODIES)])


def frames(url: str) -> None:
    _in_threads([(send_frames, (url, SHAPES[n % 3])) for n in range(SOCKETS)])


def _in_threads(work: list[tuple[Callable[..., None], tuple[object, ...]]]) -> None:
    os.nice(19)
    threads = [threading.Thread(target=target, args=arguments, daemon=True) for target, arguments in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def times_of_others(url: str, seconds: float) -> list[float]:
    """Return how long the requests of the other tenants take, in seconds."""
    took_s: list[float] = []

    async def work(tenant: str) -> None:
        headers = {"authorization": f"Bearer {api_key(tenant)}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            until = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < until:
                (await client.post("/context/conversations", json={"title": "x"})).raise_for_status()
                took_s.append(time.perf_counter() - begun)
                await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for tenant in QUIET:
            group.create_task(work(tenant))
    return took_s


async def measure(url: str, seconds: float) -> bool:
    """Measure without and with each attack; return whether the p99 is within the limit."""
    within = True
    for attack in (bodies, frames):
        took_s: dict[int, list[float]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
        attacker = multiprocessing.get_context("spawn").Process(target=attack, args=(url,), daemon=True)
        attacker.start()
        await asyncio.sleep(2)
        for _ in range(ROUNDS):
            for state, times in took_s.items():
                os.kill(attacker.pid or 0, state)
                await asyncio.sleep(0.5)
                times += await times_of_others(url, seconds / ROUNDS)
        attacker.kill()
        alone, during = took_s.values()
        ratio = percentile(0.99, during) / percentile(0.99, alone)
        half = percentile(0.5, during) / percentile(0.5, alone)
        name = f"{attack.__name__}, {len(alone)} and {len(during)} requests"
        print(f"{name}: p99 {ratio:.2f} times that alone, p50 {half:.2f} times", flush=True)
        within = within and ratio <= MAX_P99_RATIO
    return within


async def main(seconds: float) -> int:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        async with Fleet(
            Path(place), model.url, agents=1, gateways=1, runners=1, settings=SETTINGS, without=("ledger",)
        ) as fleet:
            return 0 if await measure(fleet.urls[0], seconds) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    sys.exit(asyncio.run(main(parser.parse_args().seconds)))
