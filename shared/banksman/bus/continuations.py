"""The rest of the handling of messages, beside the next messages of their consumer.

A declared handler of a durable consumer gets one message at a time. A handler whose rest takes long returns
`Continued`, and the consumer's next message is handled at once. The message stays in work until its rest has
an outcome. Tenants share the places; a message without a place is delivered again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from banksman.bus.connection import Bus
from banksman.bus.outcomes import (
    IN_PROGRESS,
    NAK,
    Continued,
    Failures,
    Later,
    Outcome,
    WorkMessage,
    handle,
    send_status,
    settle,
)
from banksman.bus.waiting import ReturnTimes, tenant_of
from banksman.bus.work import HEARTBEAT_S
from banksman.runtime.background import BackgroundTask
from banksman.runtime.shares import Shares

PLACES = 16
"""Messages of all consumers of a process whose handling continues at a time."""


@dataclass(slots=True)
class _Running:
    message: WorkMessage
    reply: str
    """The subject for the ack of the newest delivery; the deliveries before it may have expired."""


class Continuations:
    """The messages of a process whose handling continues; at most one of each subject."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._shares = Shares(PLACES)
        self._returns = ReturnTimes()
        self._running: dict[str, _Running] = {}
        """By subject."""
        self._tasks: set[BackgroundTask] = set()

    def runs(self, message: WorkMessage, reply: str) -> bool:
        """Return whether the rest of a message already runs; its outcome then acks this newer delivery."""
        running = self._running.get(message.subject)
        if running is None or running.message.stream_seq != message.stream_seq:
            return False
        running.reply = reply
        return True

    async def start(
        self, stream: str, rest: Continued, message: WorkMessage, reply: str, failures: Failures
    ) -> None:
        """Start the rest of a message, or return the message to the queue if it has no place."""
        tenant = tenant_of(message)
        if message.subject in self._running or not self._shares.allows(tenant):
            delay_s = self._returns.delay_s(tenant, asyncio.get_running_loop().time())
            await settle(self._bus, message, reply, Later(delay_s))
            return
        running = self._running[message.subject] = _Running(message, reply)
        self._shares.take(tenant)

        async def handler(_message: WorkMessage) -> Outcome:
            return await rest.rest()

        async def finish() -> None:
            try:
                async with held(self._bus, lambda: running.reply):
                    outcome = await handle(self._bus, stream, handler, message, failures)
                    await settle(self._bus, message, running.reply, outcome)
            except asyncio.CancelledError:
                # The rest has stopped, so another process need not wait until `ack_wait` expires.
                await send_status(self._bus, running.reply, NAK)
                raise

        def ended() -> None:
            del self._running[message.subject]
            self._shares.give_back(tenant)
            self._tasks.discard(task)

        task = self._bus.background.run("continued message", finish)
        self._tasks.add(task)
        task.when_ended(ended)

    async def stop(self, within_s: float) -> None:
        """Give the running ones `within_s` seconds to end, and cancel the others."""
        async with asyncio.TaskGroup() as group:
            for task in self._tasks:
                group.create_task(_stop(task, within_s))


async def _stop(task: BackgroundTask, within_s: float) -> None:
    await task.ended(within_s)
    await task.stop()


@asynccontextmanager
async def held(bus: Bus, reply: Callable[[], str]) -> AsyncGenerator[None]:
    """Keep the server from redelivering a message while the block runs.

    Args:
        bus: The connection.
        reply: Returns the subject for the ack of the message's newest delivery.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await send_status(bus, reply(), IN_PROGRESS)

    async with bus.background.running("heartbeat", beat):
        yield
