"""Process chaos: a whole system under traffic while its processes are killed and frozen.

    python -m tests.chaos.run --duration 600 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from banksman.model_server import ModelServer
from banksman.testing.chaos.faults import Faults
from banksman.testing.chaos.fleet import Fleet
from banksman.testing.chaos.traffic import Traffic
from banksman.testing.history.checks import breaches
from banksman.testing.history.folded import Folded
from banksman.testing.history.records import Recording, read
from banksman.testing.history.summary import summary


@dataclass(frozen=True)
class Chaos:
    """How hard, how long, and by which seed."""

    seed: int
    duration_s: float
    rate: float = 5.0
    every_s: float = 3.0
    freezes: float = 0.15
    frozen_s: tuple[float, float] = (45.0, 90.0)


@dataclass
class Verdict:
    """What came of it."""

    history: Folded
    problems: list[str]
    kills: dict[str, int]
    log: str
    breaches: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        broken = [f"BROKEN {name}: {len(found)}: {found[:8]}" for name, found in self.breaches.items()]
        problems = [f"PROBLEM {problem}" for problem in self.problems[:20]]
        return "\n".join([summary(self.history), *problems, *broken])


async def chaos(asked: Chaos, directory: Path) -> Verdict:
    """Let it rage, let everything settle, and judge."""
    chance = random.Random(asked.seed)
    file = directory / "history.jsonl"
    async with ModelServer.running() as model, Fleet(directory, model.url) as fleet:
        with Recording(file, seed=asked.seed) as recording:
            traffic = Traffic(fleet, model, recording, random.Random(chance.random()), asked.rate)
            faults = Faults(
                fleet,
                recording,
                random.Random(chance.random()),
                asked.every_s,
                asked.freezes,
                asked.frozen_s,
            )
            async with traffic.running():
                striking = asyncio.create_task(faults.strike())
                await asyncio.sleep(asked.duration_s)
                striking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await striking
        history = Folded(read(file))
        verdict = Verdict(history, traffic.problems, faults.struck, fleet.log(), breaches(history))
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=600.0, help="seconds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    parser.add_argument("--rate", type=float, default=5.0, help="runs started a second (default %(default)s)")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between faults")
    parser.add_argument("--frozen", type=float, nargs=2, default=(45.0, 90.0), help="seconds of a freeze")
    parser.add_argument("--keep", type=Path, default=None, help="directory for what is left of it")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="banksman-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    asked = Chaos(seed, options.duration, options.rate, options.every, frozen_s=tuple(options.frozen))
    verdict = asyncio.run(chaos(asked, directory))
    print(f"recording {directory / 'history.jsonl'}\n{verdict}")
    return 1 if verdict.breaches or verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
