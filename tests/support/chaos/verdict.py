"""Randomized fault tests of a whole system: its processes are killed and frozen under traffic.

python -m tests.support.chaos --duration 600 --seed 7
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos.broker import Servers
from tests.support.chaos.faults import Faults
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.plans import Kind
from tests.support.chaos.simulated_user import GIVE_UP_S
from tests.support.chaos.traffic import USERS, Traffic
from tests.support.history.checks import breaches
from tests.support.history.folded import Folded
from tests.support.history.records import Fault, Recording, read
from tests.support.history.summary import summary
from tests.support.model_server import ModelServer
from tests.support.nats import servers as default_servers

Strike = Callable[[Fleet, Recording], Awaitable[None]]
"""Injects faults into a fleet while users use it."""


@dataclass(frozen=True)
class Chaos:
    """The configuration of a randomized fault test."""

    seed: int
    duration_s: float
    rate: float = 5.0
    """Runs started per second."""
    every_s: float = 2.5
    """Mean seconds between two faults."""
    freezes: float = 0.15
    """Share of the faults that freeze a process instead of killing it."""
    frozen_s: tuple[float, float] = (45.0, 90.0)
    """Minimum and maximum seconds of a freeze."""
    servers: Servers = field(default_factory=default_servers)
    """nats-servers; of three at most one is down at a time."""


@dataclass
class Verdict:
    """The result of a randomized fault test."""

    history: Folded
    problems: list[str]
    """Errors that clients must not get."""
    log: str
    """The end of every process's log."""
    breaches: dict[str, list[str]]
    leaks: list[str]
    """The places where a secret was found."""

    @property
    def kills(self) -> int:
        """Return the number of killed processes."""
        return sum(fault.what == "kill" for fault in self.history.of(Fault))

    @property
    def good(self) -> bool:
        """Return whether no promise was broken."""
        return not (self.breaches or self.problems or self.leaks)

    def __str__(self) -> str:
        broken = [f"BROKEN {name}: {len(found)}: {found[:8]}" for name, found in self.breaches.items()]
        problems = [f"PROBLEM {problem}" for problem in self.problems[:20]]
        leaks = [f"LEAK {leak}" for leak in self.leaks[:20]]
        return "\n".join([summary(self.history), *problems, *broken, *leaks])


async def chaos(options: Chaos, directory: Path) -> Verdict:
    """Run one randomized fault test on a fleet of its own."""
    async with (
        ModelServer.running() as model,
        Fleet(directory, model.url, servers=options.servers) as fleet,
    ):
        return await chaos_on(fleet, model, options)


async def chaos_on(fleet: Fleet, model: ModelServer, options: Chaos) -> Verdict:
    """Kill and freeze processes of a running fleet, let all come to rest, and check the history."""
    chance = random.Random(options.seed)

    async def strike(fleet: Fleet, recording: Recording) -> None:
        faults = Faults(fleet, recording, chance, options.every_s, options.freezes, options.frozen_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.duration_s):
                await faults.strike()

    return await under_traffic(fleet, model, options.seed, options.rate, strike)


async def under_traffic(
    fleet: Fleet,
    model: ModelServer,
    seed: int,
    rate: float,
    strike: Strike,
    *,
    kinds: tuple[Kind, ...] = (),
    give_up_s: float = GIVE_UP_S,
    users: int = USERS,
) -> Verdict:
    """Start runs on a fleet during faults, and check what the users received.

    Args:
        fleet: The system.
        model: The model server of its agents.
        seed: Selects the actions of the users.
        rate: Runs started per second.
        strike: Injects the faults; when it returns, users start no more runs.
        kinds: The permitted kinds of runs; all if empty.
        give_up_s: Seconds after which a request without a reply is a problem.
        users: Number of users, among whom the runs are divided.
    """
    file = fleet.directory / "history.jsonl"
    with Recording(file, seed=seed) as recording:
        people = random.Random(f"people {seed}")
        traffic = Traffic(fleet, model, recording, people, rate, kinds, give_up_s, users)
        async with traffic.running():
            await strike(fleet, recording)
    history = Folded(read(file))
    leaks = await fleet.leaks(model)
    return Verdict(history, traffic.problems, fleet.log(), breaches(history), leaks)
