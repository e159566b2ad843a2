"""Disconnect services one after another under traffic.

python -m tests.support.chaos.partitions --seconds 5 30 120
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos.fleet import Fleet, Member
from tests.support.chaos.network import LOSSES, Cable, Loss, host_address, is_ready, isolate
from tests.support.chaos.verdict import Verdict, under_traffic
from tests.support.history.records import Fault, Recording
from tests.support.model_server import ModelServer
from tests.support.polling import eventually, scripted_delay

UNREADY_S = 60.0
"""Seconds within which a disconnected service must report that it is not ready."""
ISOLATED = ("agent-1", "tool-runner-1", "gateway-1", "workflows")


@dataclass(frozen=True)
class Cut:
    """One disconnection: a service, a direction, a duration."""

    member: str
    loss: Loss
    seconds: float


@dataclass
class Measured:
    """The times until a service reported a disconnection, and until it was ready again."""

    unready_s: dict[Cut, float] = field(default_factory=dict[Cut, float])
    """Seconds from the cut until the service was not ready."""
    recovered_s: dict[Cut, float] = field(default_factory=dict[Cut, float])
    """Seconds from the repair until the service was ready."""


async def partitions(
    cuts: Sequence[Cut], directory: Path, *, seed: int, rate: float
) -> tuple[Verdict, Measured]:
    """Disconnect one service after another, wait until all runs have ended, and check the history."""
    # Not from the seed: another test run, or leftovers of a killed one, may use the same interface names.
    number = random.SystemRandom().randrange(100, 250)
    measured = Measured()
    async with host_address(number) as host, ModelServer.running(host=host) as model:
        fleet = Fleet(directory, model.url, host=host)
        async with isolate(fleet, number, *ISOLATED) as cables, fleet:

            async def strike(fleet: Fleet, recording: Recording) -> None:
                for cut in cuts:
                    recording.add(Fault(what=f"cut {cut.loss} {cut.seconds:g} s", target=cut.member))
                    await _cut_off(fleet, cables[cut.member], cut, measured)

            return await under_traffic(fleet, model, seed, rate, strike), measured


async def _cut_off(fleet: Fleet, cable: Cable, cut: Cut, measured: Measured) -> None:
    member = fleet[cut.member]
    began = time.monotonic()
    await cable.lose(cut.loss)
    try:
        await _unready(member, cable)
        measured.unready_s[cut] = time.monotonic() - began
        await scripted_delay(cut.seconds - measured.unready_s[cut])
    finally:
        await cable.repair(cut.loss)
    repaired = time.monotonic()
    await member.ready()
    measured.recovered_s[cut] = time.monotonic() - repaired


async def _unready(member: Member, cable: Cable) -> None:

    async def is_unready() -> bool:
        return not await is_ready(member, cable)

    await eventually(is_unready, UNREADY_S, interval_s=0.2)


def main() -> int:
    """Disconnect each service in each direction; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Disconnect the services of a system, one after another.")
    parser.add_argument("--seconds", type=float, nargs="+", default=(5.0, 30.0, 120.0))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=2.0, help="runs started per second")
    options = parser.parse_args()
    cuts = [Cut(name, loss, s) for s in options.seconds for name in ISOLATED for loss in LOSSES]
    directory = Path(tempfile.mkdtemp(prefix="banksman-partitions-"))
    verdict, measured = asyncio.run(partitions(cuts, directory, seed=options.seed, rate=options.rate))
    for cut in cuts:
        times = f"unready after {measured.unready_s[cut]:.1f} s, back after {measured.recovered_s[cut]:.1f} s"
        sys.stdout.write(f"{cut.member:15} {cut.loss:4}{cut.seconds:5.0f} s: {times}\n")
    sys.stdout.write(f"{verdict}\n")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
