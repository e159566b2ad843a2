"""Admit requests over NATS before they are decoded: a rate and a queue for each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.contracts.errors import BanksmanError, Overloaded
from banksman.quotas.rates import Rates, TooManyRequests

CONCURRENCY = 64
"""Requests of one tenant that a process handles at a time."""
WAITING = 1_000
"""Requests of one tenant that may wait or be handled at a time; further ones are refused."""


@dataclass
class _Queue:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENCY))
    size: int = 0


class Intake:
    """Admits requests.

    A request over the rate limit of its tenant is refused before it is decoded. Refusals have the same limit;
    further requests are dropped without a reply, so that a flood costs little more than reading it.
    """

    def __init__(
        self,
        bus: Bus,
        rate: float | None,
        *,
        tenant_token: int = 1,
        refusal: Callable[[BanksmanError], bytes] = error_envelope,
    ) -> None:
        """Create the intake.

        Args:
            rate: Requests per second of each tenant; None for no limit.
            tenant_token: Position of the tenant among the tokens of a subject.
            refusal: Returns the reply to a request that is refused.
        """
        self._bus = bus
        self._tenant_token = tenant_token
        self._refusal = refusal
        self._rates = Rates(rate)
        self._refusals = Rates(rate)
        self._queues: dict[str, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, subject: str, reply: str, handle: Callable[[], Awaitable[None]]) -> None:
        """Handle a request in its own task, or refuse it; return at once."""
        tenant = subject.split(".")[self._tenant_token]
        if wait_s := self._rates.take(tenant):
            # Raises no exception, to keep refusals during a flood cheap.
            if reply and not self._refusals.take(tenant):
                await self._bus.publish(reply, self._refusal(TooManyRequests(wait_s)))
            return
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.size >= WAITING:
            if reply:
                await self._bus.publish(reply, self._refusal(Overloaded("too many requests wait")))
            return
        queue.size += 1
        task = asyncio.create_task(self._handle(tenant, queue, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, tenant: str, queue: _Queue, handle: Callable[[], Awaitable[None]]) -> None:
        try:
            async with queue.slots:
                await handle()
        finally:
            queue.size -= 1
            if queue.size == 0:
                del self._queues[tenant]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drop the requests that still wait; their clients repeat them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
