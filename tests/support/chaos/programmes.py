"""Longer programmes of faults of the broker under traffic, each with a verdict.

python -m tests.support.chaos.programmes stalls --seconds 1200 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from banksman.bus import names
from banksman.bus.messages import Message
from banksman.bus.queues.handling import IN_PROGRESS, NAK
from banksman.cli.local.child_process import RestartPauses
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, Failpoint
from tests.support.chaos.fleet import Fleet, Member
from tests.support.chaos.held import BOTH, Direction, HeldWire, held_wires
from tests.support.chaos.plans import Kind
from tests.support.chaos.traffic import USERS
from tests.support.chaos.verdict import Verdict, under_traffic
from tests.support.history.outcomes import needless_timeouts, unknown_outcomes
from tests.support.history.records import Decide, Fault, Line, Outage, Recording, Send, Start
from tests.support.model_server import ModelServer
from tests.support.polling import scripted_delay
from tests.support.printing import print_line

Name = Literal["stalls", "kills", "held", "away", "failpoints"]
"""
stalls      the broker is frozen for up to ten seconds
kills       the broker is killed directly after an acknowledgement
held        the bytes between a process and the broker arrive late
away        the broker is down for the whole time
failpoints  the broker is killed while agents and runners wait at their failpoints
"""

KINDS: tuple[Kind, ...] = (
    "text", "command", "commands", "json", "tool", "approve", "reject", "edit", "race", "steer", "queue",
    "remember", "long", "long", "long", "long", "workflow",
)  # fmt: skip
"""Most calls run long, so that faults hit them. No user cancels: a cancelled command counts as lost."""
STALLED_S = (0.5, 10.0)
CALM_S = (2.0, 6.0)
"""Minimum and maximum seconds between two faults."""
BEHIND_S = 0.1
"""Maximum seconds between an acknowledgement and the kill."""
ACKNOWLEDGED_WITHIN_S = 60.0
USERS_AWAY = 24
"""Users of `away`: a connection follows at most 200 conversations, and 1,200 runs wait after ten minutes."""
HELD_S = (1.0, 25.0)
HELD = ("agent-1", "tool-runner-1", "gateway-1", "workflows", "ledger")
POINT_S = 0.3
"""Seconds that each process waits at each of its failpoints."""
AGENT_POINTS: tuple[Failpoint, ...] = (
    "agent.reply_received", "agent.before_approval_request", "agent.before_ack",
)  # fmt: skip
RUNNER_POINTS: tuple[Failpoint, ...] = (
    "runner.before_claim", "runner.after_claim", "runner.begin", "runner.running", "runner.end",
    "runner.result_stored",
)  # fmt: skip


@dataclass(frozen=True)
class Programme:
    """One programme."""

    name: Name
    seed: int
    seconds: float
    """For how long faults are injected."""
    faults: int
    """Faults after which it ends earlier."""
    rate: float = 2.0
    """Runs started per second."""


@dataclass
class BrokerFaults:
    """Faults of the single broker of a fleet under traffic."""

    fleet: Fleet
    recording: Recording
    chance: random.Random
    acknowledged: asyncio.Event

    @property
    def server(self) -> Member:
        """The broker."""
        return self.fleet.servers[0]

    async def stall(self) -> None:
        """Freeze the broker once."""
        await scripted_delay(self.chance.uniform(*CALM_S))
        seconds = self.chance.uniform(*STALLED_S)
        self.recording.add(Fault(what="stall", target="nats"))
        began = time.monotonic()
        self.server.freeze()
        try:
            await scripted_delay(seconds)
        finally:
            self.server.thaw()
        self._ended(began)

    async def kill(self) -> None:
        """Kill the broker once, directly after an acknowledgement."""
        await scripted_delay(self.chance.uniform(0.3, 2.0))
        self.acknowledged.clear()
        async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
            await self.acknowledged.wait()
        await scripted_delay(self.chance.uniform(0, BEHIND_S))
        self.recording.add(Fault(what="kill", target="nats"))
        began, starts = time.monotonic(), self.server.starts
        self.server.kill()
        await self.server.begun(starts + 1)
        await self.server.ready()
        self._ended(began)

    async def leave(self, seconds: float) -> None:
        """Stop the broker for this number of seconds."""
        await scripted_delay(CALM_S[1])
        self.recording.add(Fault(what="away", target="nats"))
        began = time.monotonic()
        await self.server.stop()
        await scripted_delay(seconds)
        self.server.start()
        await self.server.ready()
        self._ended(began)
        await self.fleet.ready()
        await scripted_delay(CALM_S[1])

    def _ended(self, began: float) -> None:
        self.recording.add(Outage(target="nats", seconds=time.monotonic() - began))


async def programme(options: Programme, directory: Path) -> Verdict:
    """Run a programme on a fleet of its own."""
    async with ModelServer.running() as model:
        fleet = Fleet(directory, model.url, servers=1)
        # As under `banksman up`.
        server = fleet.servers[0]
        server.pauses = RestartPauses(server.spec.longest_pause_s)
        if options.name == "failpoints":
            _wait_at_failpoints(fleet)
        async with held_wires(fleet, *(HELD if options.name == "held" else ())) as wires, fleet:
            return await programme_on(fleet, model, options, wires)


async def programme_on(
    fleet: Fleet, model: ModelServer, options: Programme, wires: dict[str, HeldWire] | None = None
) -> Verdict:
    """Run a programme on a running fleet.

    Args:
        fleet: The system, with one broker.
        model: The model server of its agents.
        options: The programme.
        wires: The proxies of the members whose bytes can be held; only `held` needs them.
    """
    chance = random.Random(options.seed)

    async def strike(fleet: Fleet, recording: Recording) -> None:
        async with _acknowledgements(fleet, recording) as acknowledged:
            faults = BrokerFaults(fleet, recording, chance, acknowledged)
            match options.name:
                case "stalls":
                    await _repeat(options, faults.stall)
                case "kills" | "failpoints":
                    await _repeat(options, faults.kill)
                case "held":
                    await _repeat(options, lambda: _hold(recording, chance, wires or {}))
                case "away":
                    await faults.leave(options.seconds)

    verdict = await under_traffic(
        fleet,
        model,
        options.seed,
        options.rate,
        strike,
        kinds=KINDS,
        # In `away`, requests get no reply until the broker returns.
        give_up_s=options.seconds + 300,
        users=USERS_AWAY if options.name == "away" else USERS,
    )
    verdict.problems += [
        f"unnecessary unknown outcome of {one.tool} {one.call_id}: {one.reason}"
        for one in unknown_outcomes(verdict.history)
        if one.cause is None
    ]
    verdict.problems += [f"run {one} reached its time limit" for one in needless_timeouts(verdict.history)]
    return verdict


async def _repeat(options: Programme, fault: Callable[[], Awaitable[None]]) -> None:
    ends = time.monotonic() + options.seconds
    for _ in range(options.faults):
        if time.monotonic() >= ends:
            return
        await fault()


async def _hold(recording: Recording, chance: random.Random, wires: dict[str, HeldWire]) -> None:
    await scripted_delay(chance.uniform(*CALM_S))
    name, seconds = chance.choice(list(wires)), chance.uniform(*HELD_S)
    ways: tuple[Direction, ...] = chance.choice((("in",), ("out",), BOTH))
    recording.add(Fault(what=f"hold {'+'.join(ways)}", target=name))
    began = time.monotonic()
    wires[name].hold(ways)
    try:
        await scripted_delay(seconds)
    finally:
        wires[name].release()
    recording.add(Outage(target=name, seconds=time.monotonic() - began))


def _wait_at_failpoints(fleet: Fleet) -> None:
    """Let agents and runners wait at each of their failpoints, so that kills of the broker happen there."""
    for name, member in fleet.members.items():
        points = AGENT_POINTS if name.startswith("agent") else RUNNER_POINTS
        if name.startswith(("agent", "tool-runner")):
            armed = ",".join(f"{point}:sleep={POINT_S}" for point in points)
            member.environment |= {VARIABLE: armed, TESTING_VARIABLE: "1"}


@asynccontextmanager
async def _acknowledgements(fleet: Fleet, recording: Recording) -> AsyncGenerator[asyncio.Event]:
    """Yield an event that is set at each acknowledgement, to a client or of a message of the queue."""
    acknowledged = asyncio.Event()

    def on_line(line: Line) -> None:
        if isinstance(line, Send | Decide | Start) and line.phase == "ok":
            acknowledged.set()

    async def on_ack(message: Message) -> None:
        if message.data != IN_PROGRESS and not message.data.startswith(NAK):
            acknowledged.set()

    recording.on_line = on_line
    async with fleet.operator() as operator:
        await operator.subscribe(f"$JS.ACK.{names.RUNS}.{names.AGENTS}.>", on_ack)
        yield acknowledged
    recording.on_line = None


def main() -> int:
    """Run a programme; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Faults of the broker under traffic, and a verdict.")
    parser.add_argument("name", choices=get_args(Name))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--seconds", type=float, default=1200.0, help="seconds of faults (%(default)s)")
    parser.add_argument("--faults", type=int, default=1_000_000, help="end after so many faults")
    parser.add_argument("--rate", type=float, default=2.0, help="runs started a second (%(default)s)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix=f"banksman-{options.name}-"))
    chosen = Programme(options.name, options.seed, options.seconds, options.faults, options.rate)
    print_line(f"{chosen}, recording {directory / 'history.jsonl'}")
    verdict = asyncio.run(programme(chosen, directory))
    for one in unknown_outcomes(verdict.history):
        print_line(f"unknown outcome of {one.tool}: {one.cause or 'UNNECESSARY'}")
    print_line(str(verdict))
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
