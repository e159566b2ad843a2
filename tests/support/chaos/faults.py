"""Faults in the processes of a fleet, one after another, chosen by a seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from tests.support.chaos.fleet import Fleet, Member
from tests.support.history.records import Fault, Recording
from tests.support.polling import scripted_delay

BROKER_FROZEN_S = (5.0, 10.0)
"""Seconds that the broker is frozen. Everything waits for it, so a longer freeze only reduces the traffic."""


@dataclass
class Faults:
    """Kills and freezes random members until `strike` is cancelled."""

    fleet: Fleet
    recording: Recording
    chance: random.Random
    every_s: float = 2.5
    freezes: float = 0.15
    """Share of the faults that freeze a process."""
    frozen_s: tuple[float, float] = (45.0, 90.0)
    _asleep: set[str] = field(default_factory=set[str])

    async def strike(self) -> None:
        """Inject faults until cancelled; then resume a frozen process."""
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
        """Return the members that may fail next: no server of a cluster while another one is frozen."""
        spared = set(self._asleep)
        names = {server.name for server in self.fleet.servers}
        if names & self._asleep:
            spared |= names
        return [member for member in self.fleet.members.values() if member.name not in spared]

    async def _spared(self, member: Member) -> None:
        """Wait until the cluster can lose a server.

        Three servers tolerate the loss of one. Without two of them there is no majority: nothing is stored,
        every client waits, and the test would only measure the duration. A restarted server counts once its
        `healthz` reports that its streams are up to date; before that it votes, but cannot serve.
        """
        if member in self.fleet.servers:
            for other in self.fleet.servers:
                if other is not member:
                    await other.ready()

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
