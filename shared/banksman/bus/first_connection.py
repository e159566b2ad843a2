"""The first connection of a process, which may start before the system."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from banksman.bus.connection import Bus
from banksman.contracts.errors import Unavailable
from banksman.runtime.waits import set_within

logger = logging.getLogger(__name__)

PAUSE_S = 0.5


async def keep_connecting(create: Callable[[], Bus], stop: asyncio.Event) -> Bus | None:
    """Connect, however long it takes; return None if `stop` is set first. Each reason is one warning.

    `create` creates the bus of the next attempt, which reads its key file again; it may raise `Unavailable`.
    """
    reasons = set[str]()
    while not stop.is_set():
        try:
            if bus := await _opened(create(), stop):
                return bus
        except Unavailable as error:
            level = logging.INFO if str(error) in reasons else logging.WARNING
            logger.log(level, "waits for the system: %s", error)
            reasons.add(str(error))
            await set_within(stop, PAUSE_S)
    return None


async def _opened(bus: Bus, stop: asyncio.Event) -> Bus | None:
    opening = asyncio.create_task(bus.open())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return opening.result() if opening.done() else None
    finally:
        opening.cancel()
        stopped.cancel()
        await asyncio.wait({opening, stopped})
        if opening.cancelled() or opening.exception():
            await bus.close()
