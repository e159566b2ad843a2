"""The first connection to NATS of a service that waits for it, however long it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from banksman.bus.connection import Bus
from banksman.contracts.errors import Unavailable

logger = logging.getLogger(__name__)


async def keep_connecting(create: Callable[[], Bus], stop: asyncio.Event) -> Bus | None:
    """Connect, however long it takes; return None if `stop` is set first.

    Args:
        create: Creates the bus of the next attempt, which reads its key file again.
        stop: Ends the attempts.
    """
    while not stop.is_set():
        bus = create()
        if await _opened(bus, stop):
            return bus
        await bus.close()
    return None


async def _opened(bus: Bus, stop: asyncio.Event) -> bool:
    opening = asyncio.create_task(bus.open())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return False
        opening.result()
    except Unavailable as error:
        logger.warning("%s", error)
        return False
    finally:
        opening.cancel()
        stopped.cancel()
        await asyncio.wait({opening, stopped})
    return True
