"""Readiness check of all services: the settings of streams, consumers and the server are not too weak."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from banksman.bus.connection import Bus
from banksman.contracts.errors import BanksmanError, Refused
from banksman.deployment import streams
from banksman.deployment.declarations import StorageBudget
from banksman.deployment.topology import Topology, app_topology, run_topology

logger = logging.getLogger(__name__)

LEAST_STORAGE = StorageBudget(1_000_000)
"""Minimum bytes for all streams together; the operator may give them more."""
RECHECK_S = 60.0
"""Seconds for which a positive result is reused. After that, weakened settings make a service unready."""
RETRY_S = 1.0


class Durability:
    """Checks that streams, consumers and the server are as strong as required."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        self._bus = bus
        self._topology = topology
        self._problem: str | None = None
        self._checked_at = float("-inf")
        self._checking: asyncio.Task[None] | None = None

    @classmethod
    def of_app(cls, bus: Bus) -> Self:
        """Return the check for gateways, agents and the workflows service."""
        return cls(bus, app_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    @classmethod
    def of_run(cls, bus: Bus) -> Self:
        """Return the check for tool-runners: their own account, the only one that they can inspect."""
        return cls(bus, run_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    async def problem(self) -> str | None:
        """Return what is missing or weaker than required; raise `Unavailable` if nothing is known."""
        now = asyncio.get_running_loop().time()
        if self._checking is None and (self._problem is not None or now - self._checked_at > RECHECK_S):
            self._checking = asyncio.create_task(self._check(now), name="durability")
            self._checking.add_done_callback(self._checked)
        if self._checking is not None:
            # All requests wait for the same check, which continues when a request times out. On a busy
            # machine, a check that each request restarted would never end.
            await asyncio.shield(self._checking)
        return self._problem

    async def holds(self, stop: asyncio.Event) -> bool:
        """Wait until there is no problem; return False if `stop` is set first."""
        logged: str | None = None
        while not stop.is_set():
            try:
                found = await self.problem()
            except BanksmanError as error:
                found = str(error)
            if found is None:
                return True
            if found != logged:
                logger.error("not ready: %s", found)
                logged = found
            await _pause(stop)
        return False

    def _checked(self, _check: asyncio.Task[None]) -> None:
        self._checking = None

    async def _check(self, now: float) -> None:
        try:
            findings = await streams.verify(self._bus, self._topology)
            for warning in await streams.nearly_full(self._bus, self._topology):
                logger.warning("%s", warning)
        except Refused:
            # During a leader election requests fail, but the settings have not changed.
            if self._checked_at == float("-inf"):
                raise
            return
        self._problem = "; ".join(findings) or None
        self._checked_at = now


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(RETRY_S):
            await stop.wait()
    except TimeoutError:
        return
