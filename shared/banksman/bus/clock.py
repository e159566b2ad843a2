"""The broker's time, which all processes use where they compare times of different processes.

The clocks of machines differ. All processes share the clock of the broker, which stamps stored messages and
fires timers. A process requests the broker's time every `REQUEST_EVERY_S` seconds and adds its own monotonic
clock, so that no run waits for a request or causes an additional message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, api
from banksman.contracts.ids import new_id
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

REQUEST_EVERY_S = 20.0
"""Seconds between two requests for the broker's time."""
MAX_DRIFT = 0.0005
"""Seconds per second by which two machines' clocks may drift apart; typical drift is a tenth of this."""
WARN_ABOVE_S = 2.0
"""Offset from the broker's clock, in seconds, above which a process logs a warning."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the broker's time minus this process's monotonic time, in seconds."""

    least: float
    most: float
    at: float
    """The monotonic time at which the bounds hold."""

    @property
    def middle(self) -> float:
        """The estimate: the middle of the bounds."""
        return (self.least + self.most) / 2

    def narrowed(self, later: Bounds) -> Bounds:
        """Return the bounds narrowed by later ones; only the later ones if the broker's clock was set."""
        apart = (later.at - self.at) * MAX_DRIFT
        least, most = max(self.least - apart, later.least), min(self.most + apart, later.most)
        return Bounds(least, most, later.at) if least <= most else later


class BrokerClock(Scoped):
    """The broker's time, which is the same in all processes, and new ids.

    As a context manager, the clock has the broker's time when the block begins, and requests it repeatedly
    while the block runs. Before that, the clock returns the time of the machine.
    """

    def __init__(self, bus: Bus, *, stream: str = EVENTS, request_every_s: float = REQUEST_EVERY_S) -> None:
        """Create the clock. It requests the state of `stream`, for which this user needs the permission."""
        self._bus = bus
        self._stream = stream
        self._request_every_s = request_every_s
        self._offset = time.time() - time.monotonic()
        self._bounds: Bounds | None = None
        self._request_now = asyncio.Event()

    def now(self) -> datetime:
        """Return the broker's time, in UTC, as estimated by this process."""
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    def new_id(self, prefix: str) -> str:
        """Return an id that no other process creates."""
        return new_id(prefix)

    async def _enter(self, scope: AsyncExitStack) -> None:
        await self._request()
        wrong_s = time.time() - self.now().timestamp()
        if abs(wrong_s) > WARN_ABOVE_S:
            logger.warning(
                "the clock of this machine is off by %+.1f s; the clock of the broker is used", wrong_s
            )
        scope.callback(self._bus.on_reconnect(self._request_now.set))
        scope.push_async_callback(self._bus.background.repeat("clock", self._request, wait=self._wait).stop)

    async def _wait(self) -> None:
        await set_within(self._request_now, self._request_every_s)
        self._request_now.clear()

    async def _request(self) -> None:
        """Request the state of a stream; the response contains the time at which it was made."""
        sent_at = time.monotonic()
        response = await call(self._bus, api("STREAM.INFO", self._stream))
        received_at = time.monotonic()
        made_at = datetime.fromisoformat(response["ts"]).timestamp()
        bounds = Bounds(made_at - received_at, made_at - sent_at, received_at)
        self._bounds = bounds if self._bounds is None else self._bounds.narrowed(bounds)
        self._offset = self._bounds.middle
