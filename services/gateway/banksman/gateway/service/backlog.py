"""How much work waits for agents, and when more of it is refused."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

from prometheus_client import Gauge

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import AGENTS, RUNS, api
from banksman.contracts import subjects
from banksman.contracts.errors import ErrorCode, Overloaded
from banksman.contracts.subjects import ANY

LOOK_AGAIN_S = 0.5
"""Seconds that a count is good for; meanwhile other gateways may let some more in."""
LONGEST_WAIT_S = 60.0
RUNS_PER_S = 20.0
"""Runs that agents take up in a second, for the time that clients are told to wait: the least that two cores
do."""

_WAITING = Gauge("banksman_waiting_runs", "Runs that no agent has ended or parked.")


class TooManyWaiting(Overloaded):
    """A tenant has as many runs waiting as it may."""

    code = ErrorCode.RATE_LIMITED


@dataclass
class Backlog:
    """The runs that no agent has ended or parked: they wait in the queue, or are driven.

    One question to the broker a half second, however many runs start; a second one only while more wait than
    one tenant may have.
    """

    bus: Bus
    most: int
    """Of all tenants."""
    most_of_tenant: int
    _all: int = 0
    _of: dict[str, int] = field(default_factory=dict[str, int])
    _until: float = 0.0
    # One asks for all who want to know.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def check(self, tenant: str) -> None:
        """Refuse a run of a tenant while too many wait.

        Raises:
            TooManyWaiting: the tenant has as many as it may.
            Overloaded: all tenants together have.
        """
        async with self._turn:
            await self._look()
            if self._all >= self.most:
                wait_s = _until_free(self._all, self.most)
                raise Overloaded(f"{self._all} runs wait for agents", retry_after_s=wait_s)
            if self._all >= self.most_of_tenant and tenant not in self._of:
                self._of[tenant] = await self._waiting_of(tenant)
            mine = self._of.get(tenant, 0)
            if mine >= self.most_of_tenant:
                wait_s = _until_free(mine, self.most_of_tenant)
                raise TooManyWaiting(f"{mine} runs wait; {self.most_of_tenant} may", retry_after_s=wait_s)
            self._all += 1
            if tenant in self._of:
                self._of[tenant] += 1

    async def measure(self) -> None:
        """Tell how many wait, as of the last half second.

        Raises:
            Unavailable: the broker does not answer; what was told last stays.
        """
        async with self._turn:
            await self._look()

    async def _look(self) -> None:
        now = time.monotonic()
        if now < self._until:
            return
        info = await jetstream.call(self.bus, api("CONSUMER.INFO", RUNS, AGENTS))
        self._all = int(info["num_pending"]) + int(info["num_ack_pending"])
        _WAITING.set(self._all)
        self._of.clear()
        self._until = time.monotonic() + LOOK_AGAIN_S

    async def _waiting_of(self, tenant: str) -> int:
        wanted = {"subjects_filter": subjects.run_work(tenant, ANY)}
        info = await jetstream.call(self.bus, api("STREAM.INFO", RUNS), wanted)
        found = cast(dict[str, int], info["state"].get("subjects") or {})
        return sum(found.values())


def _until_free(waiting: int, most: int) -> float:
    """Seconds until there should be room."""
    return min(LONGEST_WAIT_S, 1.0 + (waiting - most) / RUNS_PER_S)
