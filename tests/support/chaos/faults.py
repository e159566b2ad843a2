"""Faults in the processes of a fleet, one after the other, chosen by a seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from tests.support.chaos.fleet import Fleet, Member
from tests.support.history.records import Fault, Recording
from tests.support.polling import scripted_delay

BROKER_FROZEN_S = (5.0, 10.0)
"""Seconds that the broker is frozen. All stands still with it: longer would only shorten the traffic."""


@dataclass
class Faults:
    """Kills and freezes members at random for as long as `strike` runs."""

    fleet: Fleet
    recording: Recording
    chance: random.Random
    every_s: float = 2.5
    freezes: float = 0.15
    """Share of the strikes that freeze."""
    frozen_s: tuple[float, float] = (45.0, 90.0)
    _asleep: set[str] = field(default_factory=set[str])

    async def strike(self) -> None:
        """Strike until cancelled; what is frozen then is thawed."""
        async with asyncio.TaskGroup() as frozen:
            while True:
                await scripted_delay(self.chance.uniform(0.6, 1.4) * self.every_s)
                member = self.chance.choice(self._awake())
                await self._spared(member)
                if self.chance.random() < self.freezes and len(self._asleep) < 2:
                    frozen.create_task(self._freeze(member))
                else:
                    self._kill(member)

    def _awake(self) -> list[Member]:
        """The members that may fail next: of a cluster no server while another one is frozen."""
        spared = set(self._asleep)
        names = {server.name for server in self.fleet.servers}
        if names & self._asleep:
            spared |= names
        return [member for member in self.fleet.members.values() if member.name not in spared]

    async def _spared(self, member: Member) -> None:
        """Wait until the cluster can do without a server.

        Three servers promise to go on without one of them. Without two there is no majority, nothing is
        stored and every client waits: that would test only how long. A server that is back counts once its
        `healthz` says that its streams have what was stored meanwhile; until then it votes and cannot serve.
        """
        if member in self.fleet.servers:
            for other in self.fleet.servers:
                if other is not member:
                    await other.ready(self.fleet.http)

    def _kill(self, member: Member) -> None:
        self.recording.add(Fault(what="kill", target=member.name))
        member.kill()

    async def _freeze(self, member: Member) -> None:
        self.recording.add(Fault(what="freeze", target=member.name))
        self._asleep.add(member.name)
        member.freeze()
        try:
            frozen_s = BROKER_FROZEN_S if member.name == "nats" else self.frozen_s
            await scripted_delay(min(self.chance.uniform(*frozen_s), self.frozen_s[1]))
        finally:
            member.thaw()
            self._asleep.discard(member.name)
