"""The first connection of a service, and the report of its state on request.

No state is stored, and an idle system sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.administration import ServiceState
from banksman.contracts.errors import Unavailable
from banksman.runtime.health import Health

logger = logging.getLogger(__name__)

WAITING_REQUESTS = 16
"""Requests that wait while a process is blocked; further ones are dropped."""


@asynccontextmanager
async def reported_state(bus: Bus, health: Health) -> AsyncGenerator[None]:
    """Reply to requests for the state of this process while the context is open."""

    async def report(request: Message) -> None:
        if request.reply:
            await bus.publish(request.reply, (await _state(health)).model_dump_json().encode())

    subscription = await bus.subscribe(subjects.service_state(), report, pending_messages=WAITING_REQUESTS)
    try:
        yield
    finally:
        await subscription.unsubscribe()


async def _state(health: Health) -> ServiceState:
    problems, warnings = await health.findings()
    return ServiceState(
        service=health.service,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("banksman"),
        started_at=health.started_at,
        ready=not problems,
        problems=problems,
        warnings=warnings,
        used=health.used(),
        places=health.places,
    )


async def keep_connecting(create: Callable[[], Bus], stop: asyncio.Event) -> Bus | None:
    """Connect, however long it takes; return None if `stop` is set first.

    `create` creates the bus of the next attempt, which reads its key file again.
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
