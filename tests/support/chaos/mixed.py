"""Two versions of the system side by side under traffic: an upgrade, a rollback, and a second upgrade.

python -m tests.support.chaos.mixed --base HEAD~60
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from banksman.bus.dead import NOTES, dead_letters
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.verdict import Verdict, under_traffic
from tests.support.chaos.versions import CURRENT, NoSuchVersion, Version, version_at
from tests.support.history.records import Fault, Recording
from tests.support.model_server import ModelServer
from tests.support.polling import scripted_delay
from tests.support.printing import print_line

FIRST = ("agent-1", "gateway-1", "tool-runner-1", "workflows")
SECOND = ("agent-2", "gateway-2", "tool-runner-2", "ledger")
BASE = "HEAD~60"


@dataclass(frozen=True)
class Mixed:
    """The versions, the duration, and the seed of a test."""

    old: Version
    new: Version
    seed: int
    rate: float = 3.0
    """Runs started per second."""
    side_by_side_s: float = 20.0
    """Seconds of traffic per mixture, and again after a process of each version was killed."""
    whole: bool = True
    """True: upgrade everything, the broker first, roll back and upgrade again. False: upgrade one half and
    roll it back."""
    at_once: bool = False
    """True: upgrade all processes at the same time, because the two versions do not work side by side."""

    @property
    def steps(self) -> tuple[tuple[tuple[str, ...], Version], ...]:
        """Return the steps: which processes restart with which version."""
        if self.at_once:
            return (((*FIRST, *SECOND), self.new),)
        if not self.whole:
            return ((FIRST, self.new), (FIRST, self.old))
        versions = (self.new, self.old, self.new)
        return tuple((half, version) for version in versions for half in (FIRST, SECOND))


async def mixed(options: Mixed, directory: Path) -> Verdict:
    """Mix the versions on a fleet of its own."""
    async with ModelServer.running() as model:
        fleet = Fleet(directory, model.url, servers=1)
        await options.old.configure_broker(fleet.nats, "prepare")
        fleet.provision = partial(options.old.configure_broker, fleet.nats, "provision")
        for name in (*FIRST, *SECOND):
            fleet[name].version = options.old
        async with fleet:
            return await mixed_on(fleet, model, options)


async def mixed_on(fleet: Fleet, model: ModelServer, options: Mixed) -> Verdict:
    """Restart one half of a fleet after the other with another version, kill processes of both, and check.

    A message that one version writes and the other cannot read is dead-lettered; there must be none.
    """
    chance = random.Random(options.seed)
    earlier = await _dead_letters(fleet)

    async def roll(fleet: Fleet, recording: Recording) -> None:
        if options.whole:
            await _upgrade_broker(fleet, recording, options.new)
            if not options.at_once:
                await fleet.ready()
        for half, version in options.steps:
            await _become(fleet, recording, half, version)
            await scripted_delay(options.side_by_side_s)
            for killed in (chance.choice(FIRST), chance.choice(SECOND)):
                recording.add(Fault(what="kill", target=killed))
                fleet[killed].kill()
            await scripted_delay(options.side_by_side_s)

    verdict = await under_traffic(fleet, model, options.seed, options.rate, roll)
    verdict.problems += (await _dead_letters(fleet))[len(earlier) :]
    return verdict


async def _dead_letters(fleet: Fleet) -> list[str]:
    """Return one sentence per dead letter, oldest first."""
    async with fleet.operator() as bus:
        letters = [stored.letter async for stored in dead_letters(bus)]
    poison = [letter for letter in letters if letter.stream != NOTES]
    return [f"dead letter of {letter.subject}: {letter.reason}" for letter in poison]


async def _upgrade_broker(fleet: Fleet, recording: Recording, version: Version) -> None:
    """Restart the broker with the configuration of another version, and update its streams."""
    recording.add(Fault(what=f"restart as {version.name}", target="nats"))
    await version.configure_broker(fleet.nats, "prepare")
    await fleet["nats"].restart()
    await fleet["nats"].begun(2)
    await fleet["nats"].ready()
    await version.configure_broker(fleet.nats, "provision")


async def _become(fleet: Fleet, recording: Recording, half: tuple[str, ...], version: Version) -> None:
    """Restart some processes by SIGTERM, with another version."""
    async with asyncio.TaskGroup() as restarting:
        for name in half:
            recording.add(Fault(what=f"restart as {version.name}", target=name))
            fleet[name].version = version
            restarting.create_task(fleet[name].restart())
    await fleet.ready()


def main() -> int:
    """Run the test; return 1 if a promise was broken, 2 if a version is missing."""
    parser = argparse.ArgumentParser(description="Two versions of the system side by side under traffic.")
    help = "the other version, as a git ref; the clone must contain its history (default %(default)s)"
    parser.add_argument("--base", default=BASE, help=help)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=3.0, help="runs started a second (default %(default)s)")
    parser.add_argument("--side-by-side", type=float, default=20.0, help="seconds of a mixture, twice")
    help = "settings of this version that the base refuses as unknown"
    parser.add_argument("--without", nargs="+", default=(), metavar="VARIABLE", help=help)
    parser.add_argument("--at-once", action="store_true", help="upgrade all processes at the same time")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="banksman-mixed-"))
    (directory / "base").mkdir()
    try:
        base = version_at(options.base, directory / "base", options.without)
    except NoSuchVersion as missing:
        print_line(f"no such version: {missing}")
        return 2
    print_line(f"seed {options.seed}, base {options.base}, recording {directory / 'history.jsonl'}")
    config = Mixed(base, CURRENT, options.seed, options.rate, options.side_by_side, at_once=options.at_once)
    verdict = asyncio.run(mixed(config, directory))
    print_line(str(verdict))
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
