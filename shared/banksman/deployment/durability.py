"""The check that every service makes: what it relies on exists, and is as strong as promised."""

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
"""What the streams must at least be given, together; how much more is the operator's choice."""
LOOK_AGAIN_S = 60.0
"""Seconds that a good answer holds: settings that drift make a running service unready after that."""
RETRY_S = 1.0


class Durability:
    """Says whether streams, consumers and the server are as strong as promised."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        """Describe the check.

        Args:
            bus: A connection in the account of the streams.
            topology: What the service relies on, at the least.
        """
        self._bus = bus
        self._topology = topology
        self._said: str | None = None
        self._asked_at = float("-inf")
        # Readiness is asked for by several at once; one look is enough for all.
        self._turn = asyncio.Lock()

    @classmethod
    def of_app(cls, bus: Bus) -> Self:
        """Of what gateways, agents and workflows rely on."""
        return cls(bus, app_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    @classmethod
    def of_run(cls, bus: Bus) -> Self:
        """Of what tool-runners rely on in their own account; the rest they cannot see."""
        return cls(bus, run_topology(LEAST_STORAGE, replicas=bus.settings.replicas))

    async def problem(self) -> str | None:
        """What is missing or weaker; None when all is well.

        Raises:
            Unavailable: no answer, and none was had before.
        """
        async with self._turn:
            now = asyncio.get_running_loop().time()
            if self._said is not None or now - self._asked_at > LOOK_AGAIN_S:
                await self._look(now)
            return self._said

    async def holds(self, stop: asyncio.Event) -> bool:
        """Wait until all is well; False when `stop` came first."""
        told: str | None = None
        while not stop.is_set():
            try:
                found = await self.problem()
            except BanksmanError as error:
                found = str(error)
            if found is None:
                return True
            if found != told:
                logger.error("not ready: %s", found)
                told = found
            await _pause(stop)
        return False

    async def _look(self, now: float) -> None:
        try:
            findings = await streams.verify(self._bus, self._topology)
            for warning in await streams.nearly_full(self._bus, self._topology):
                logger.warning("%s", warning)
        except Refused:
            # An election that takes a moment does not make weak what was strong a minute ago.
            if self._asked_at == float("-inf"):
                raise
            return
        self._said = "; ".join(findings) or None
        self._asked_at = now


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(RETRY_S):
            await stop.wait()
    except TimeoutError:
        return
