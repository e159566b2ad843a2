"""The broker's time of day, by which all processes go where moments of different ones are compared.

Machines' clocks differ. The broker's is the one that all share: it stamps what is stored and fires timers. A
process asks for it now and then and counts on by its monotonic clock, so that no run waits for it and none
costs a message more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, api
from banksman.contracts.ids import new_id
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

ASK_EVERY_S = 20.0
MOST_DRIFT = 0.0005
"""Seconds in a second by which two machines' clocks run apart; good ones do so by a tenth of it."""
TOLD_S = 2.0
"""Seconds by which a machine's clock is wrong before its log says so."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the broker's time less this process's monotonic time lies between, in seconds."""

    least: float
    most: float
    at: float
    """The monotonic moment for which they hold."""

    @property
    def middle(self) -> float:
        """The best guess."""
        return (self.least + self.most) / 2

    def narrowed(self, later: Bounds) -> Bounds:
        """With a later answer. Where both cannot be true the broker's clock was set: then that one counts."""
        apart = (later.at - self.at) * MOST_DRIFT
        least, most = max(self.least - apart, later.least), min(self.most + apart, later.most)
        return Bounds(least, most, later.at) if least <= most else later


class BrokerClock:
    """Time and chance, the same time for everybody.

    As a context manager it has asked when the block begins, and goes on asking. Before that it tells the
    machine's own time.
    """

    def __init__(self, bus: Bus, *, stream: str = EVENTS, ask_every_s: float = ASK_EVERY_S) -> None:
        """Describe it.

        Args:
            bus: The connection.
            stream: Whose leader is asked; one that this user may ask for its state.
            ask_every_s: Seconds between two requests for the time.
        """
        self._bus = bus
        self._stream = stream
        self._ask_every_s = ask_every_s
        self._offset = time.time() - time.monotonic()
        self._bounds: Bounds | None = None
        self._ask_now = asyncio.Event()
        self._asking: BackgroundTask | None = None

    def now(self) -> datetime:
        """The moment by the broker's clock, in UTC, as well as it is known here."""
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)

    def new_id(self, prefix: str) -> str:
        """An id nobody else makes."""
        return new_id(prefix)

    async def __aenter__(self) -> Self:
        await self._ask()
        wrong_s = time.time() - self.now().timestamp()
        if abs(wrong_s) > TOLD_S:
            logger.warning("this machine's clock is %+.1f s from the broker's, which counts", wrong_s)
        remove = self._bus.on_reconnect(self._ask_now.set)
        self._asking = self._bus.background.repeat("clock", self._ask, wait=self._wait)
        self._asking.when_ended(remove)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asking is not None:
            await self._asking.stop()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ask_every_s):
                await self._ask_now.wait()
        self._ask_now.clear()

    async def _ask(self) -> None:
        """Ask a stream for its state, of which the server says when it was.

        Raises:
            Unavailable: no answer.
        """
        asked_at = time.monotonic()
        answer = await call(self._bus, api("STREAM.INFO", self._stream))
        heard_at = time.monotonic()
        told = datetime.fromisoformat(answer["ts"]).timestamp()
        heard = Bounds(told - heard_at, told - asked_at, heard_at)
        self._bounds = heard if self._bounds is None else self._bounds.narrowed(heard)
        self._offset = self._bounds.middle
