"""Process chaos: a whole system under traffic while its processes are killed and frozen.

python -m tests.chaos.run --duration 600 --seed 7
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
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
    """Runs started a second."""
    every_s: float = 3.0
    """Seconds from one fault to the next, on average."""
    freezes: float = 0.15
    """Share of the faults that freeze a process instead of killing it."""
    frozen_s: tuple[float, float] = (45.0, 90.0)
    """Seconds that one is frozen, at least and at most."""


@dataclass
class Verdict:
    """What came of it."""

    history: Folded
    problems: list[str]
    """What clients met that they should not have met."""
    kills: dict[str, int]
    """By process."""
    log: str
    """The end of every process's log."""
    breaches: dict[str, list[str]]

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not self.breaches and not self.problems

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
