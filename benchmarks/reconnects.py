"""Reconnects: 200 clients receive events 1..n through 20 RSTs, silences, half frames or killed gateways each.

Run: python benchmarks/reconnects.py [--clients 200] [--cuts 20] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.support.chaos.fleet import Fleet
from tests.support.reconnects import problem, run_all
from tests.support.system import scripted_model


async def main(clients: int, cuts: int, seed: int) -> int:
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        async with Fleet(Path(place), model.url, agents=1, gateways=2, runners=1) as fleet:
            begun = time.perf_counter()
            followers = await run_all(
                fleet, model, clients=clients, cuts=cuts, conversations=20, kill_every_s=10.0, seed=seed
            )
            took_s = time.perf_counter() - begun
            kills = len(fleet["gateway-2"].exit_codes)
    wrong = [found for one in followers if (found := problem(one))]
    resumed = sorted(seconds for one in followers for seconds in one.resumed_s)
    events = sum(len(one.seqs) for one in followers)
    print(
        f"seed {seed}: {clients} clients, {sum(one.cuts for one in followers)} disconnections,"
        f" {kills} gateways killed"
    )
    print(f"{events} events in {took_s:.0f} s; {len(wrong)} clients did not receive 1..n")
    p50, p95 = resumed[len(resumed) // 2], resumed[int(len(resumed) * 0.95)]
    print(f"from connecting to live: p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms")
    for line in wrong[:10]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.clients, given.cuts, given.seed)))
