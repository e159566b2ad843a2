"""The report of a service's state on request.

No state is stored, and an idle system sends nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.administration import ServiceState
from banksman.runtime.health import Health

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
