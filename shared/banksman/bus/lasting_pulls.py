"""Long pulls for FastStream's durable consumers, renewed after a reconnect."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext

from banksman.bus.connection import Bus


class LastingPulls(JetStreamContext):
    """Pull subscriptions whose current pull ends at a reconnect.

    The server drops a pull with its connection, but nats-py waits until the pull expires, and would fetch no
    new messages meanwhile.
    """

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.nc)
        self._bus = bus

    async def pull_subscribe(self, *args: Any, **options: Any) -> JetStreamContext.PullSubscription:
        """Subscribe as nats-py does."""
        inner = await super().pull_subscribe(*args, **options)
        return cast(JetStreamContext.PullSubscription, _PullSubscription(self._bus, inner))


class _PullSubscription:
    def __init__(self, bus: Bus, inner: JetStreamContext.PullSubscription) -> None:
        self._inner = inner
        self._pull: asyncio.Task[list[Msg]] | None = None
        self._remove = bus.on_reconnect(self._reconnected)

    async def fetch(self, batch: int, timeout: float | None) -> list[Msg]:  # noqa: ASYNC109  # called by name
        """Return the next messages.

        Raises:
            NatsTimeout: None arrived in time, or the connection was lost.
        """
        pull = self._pull = asyncio.create_task(self._inner.fetch(batch, timeout), name="pull")
        try:
            await asyncio.wait([pull])
        finally:
            pull.cancel()
        if pull.cancelled():
            raise NatsTimeout
        return pull.result()

    async def unsubscribe(self) -> None:
        """Unsubscribe."""
        self._remove()
        await self._inner.unsubscribe()

    def _reconnected(self) -> None:
        if self._pull is not None:
            self._pull.cancel()
