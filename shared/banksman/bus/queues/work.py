"""The work loop: handles messages in slots, and extends each delivery while its handler runs.

A pull requests as many messages as slots are free. A message is not redelivered while its handler runs,
because `in progress` is sent every 0.8 s and `ack_wait` is 3 s. When the process dies, another process gets
the message.

Where tenants share the slots, a pull is outstanding even while no slot is free: see `waiting`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banksman.bus.connection import Bus
from banksman.bus.queues.handling import (
    IN_PROGRESS,
    NAK,
    Done,
    FailureCounts,
    Handler,
    Later,
    Leave,
    Outcome,
    WorkMessage,
    handle,
    send_status,
    settle,
    work_message,
)
from banksman.bus.queues.pulls import Pulls
from banksman.bus.queues.waiting import HeldDelivery, WaitingMessages, tenant_of
from banksman.contracts.errors import Unavailable
from banksman.library_internals.nats_client import subscribe
from banksman.quotas.adaptive import AdaptiveLimit
from banksman.quotas.places import Shares
from banksman.runtime.waits import set_within

__all__ = ["Done", "Handler", "Later", "Leave", "Outcome", "WorkMessage", "work"]

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.8
"""Seconds between two `in progress` signals of a running handler; three fit into `ack_wait`, so two may be
lost."""
HEARTBEATS_AT_ONCE = 64
"""Signals that are sent before other work gets a turn: all signals of thousands of handlers take a tenth of a
second."""
LOOK_AHEAD = 8
"""Minimum number of messages of a pull where tenants share the slots."""
MAX_SHORT = 16
"""Maximum number of handlers of short messages that have no free slot."""


async def work(
    bus: Bus,
    stream: str,
    durable: str,
    handler: Handler,
    *,
    slots: int | Shares,
    waiting: Shares | None = None,
    limit: AdaptiveLimit | None = None,
    is_short: Callable[[WorkMessage], bool] = lambda _message: False,
    stop: asyncio.Event | None = None,
    grace_s: float = 20.0,
) -> None:
    """Handle the messages of a durable consumer until `stop` is set.

    Continues after reconnects, server restarts and elections. After `stop` it pulls no more, waits `grace_s`
    seconds for the running handlers, cancels the others and returns. The messages of cancelled handlers are
    redelivered to other processes.

    Args:
        handler: Called for each message, for up to `slots` messages concurrently; a message that is
            redelivered while its handler runs does not start a second one in this process.
        slots: The maximum number of messages in work, or how tenants share the slots.
        waiting: How tenants share the places of handlers that wait without a slot. With None, a handler that
            waits keeps its slot.
        limit: Adapts the number of shared slots to the load; None keeps it.
        is_short: Returns whether a handler most likely ends at once. A few of these need no free slot,
            because behind a queue of them there may be messages that find one.
        stop: Starts the drain; None runs until the connection is closed.
        grace_s: Seconds that running handlers get to end.

    Raises:
        Unavailable: The connection is permanently closed.
    """
    worker = _Worker(bus, stream, durable, handler, slots, waiting, limit, is_short)
    await worker.run(stop or asyncio.Event(), grace_s)


class _Worker:
    def __init__(
        self,
        bus: Bus,
        stream: str,
        durable: str,
        handler: Handler,
        slots: int | Shares,
        without_slot: Shares | None,
        limit: AdaptiveLimit | None,
        is_short: Callable[[WorkMessage], bool],
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._handler = handler
        self._slots = slots
        self._waiting = WaitingMessages(slots) if isinstance(slots, Shares) else None
        self._without_slot = without_slot
        self._limit = limit
        self._is_short = is_short
        self._short = 0
        """Handlers of short messages that started without a free slot."""
        self._congested = False
        self._ended = 0
        """Handlers that ended since the last adaptation."""
        self._failures = FailureCounts()
        self._pulls = Pulls(bus, stream, durable, self._wanted)
        self._in_work: dict[int, HeldDelivery] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = asyncio.Event()
        """Set when a message arrives: without any, no heartbeat is due."""
        self._heartbeat_now = asyncio.Event()
        self._stopping = False

    async def run(self, stop: asyncio.Event, grace_s: float) -> None:
        subscription = await subscribe(self._bus.nc, f"{self._pulls.inbox}.*", self._received)
        remove = self._bus.on_reconnect(self._reconnected)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                heartbeats = self._bus.background.run("heartbeats", self._send_heartbeats)
                try:
                    await self._pulls.run(stop)
                    # The subscription stays: messages of the last pull are returned at once with a NAK.
                    self._stopping = True
                    if self._waiting is not None:
                        await self._return(self._waiting.all())
                    if self._tasks:
                        await asyncio.wait(self._tasks, timeout=grace_s)
                finally:
                    self._stopping = True
                    # Before the handlers are cancelled: the outstanding pull would fetch the returned
                    # messages again.
                    with contextlib.suppress(NatsError):
                        await subscription.unsubscribe()
                    await heartbeats.stop()
                    for task in tuple(self._tasks):
                        task.cancel()
        finally:
            remove()
        if not stop.is_set():
            raise Unavailable(f"{self._stream}/{self._durable}: the connection to NATS is closed")

    def _wanted(self) -> int:
        if isinstance(self._slots, Shares):
            # While messages wait although slots are free, their tenants have their share, and most further
            # messages would only be returned.
            return LOOK_AHEAD if self._waiting else max(LOOK_AHEAD, self._slots.free)
        return self._slots - len(self._in_work)

    def _reconnected(self) -> None:
        self._pulls.forget()
        # The deliveries of running handlers may expire soon, so the heartbeats do not wait for their turn.
        self._heartbeat_now.set()

    async def _received(self, msg: Msg) -> None:
        """Start the handler of a message, let the message wait for a slot, or return it to the queue."""
        if msg.subject.startswith(self._pulls.inbox):
            # Messages of the stream arrive on their own subject; only status messages arrive on the inbox.
            self._pulls.status_arrived(msg)
            return
        self._pulls.message_arrived()
        message, reply = self._parsed(msg), msg.reply
        if message is None:
            return
        if item := self._in_work.get(message.stream_seq):
            # The `in progress` signals were lost and the message came back to its own process. The running
            # handler continues and acks this newer delivery.
            item.reply = reply
        elif self._stopping:
            await send_status(self._bus, reply, NAK)
        elif self._waiting is not None:
            now = asyncio.get_running_loop().time()
            delivery = HeldDelivery(message, reply, tenant_of(message), now)
            if self._is_short(message) and self._short < MAX_SHORT:
                delivery.short, delivery.has_turn = True, False
                self._short += 1
                self._waiting.shares.take(delivery.tenant)
                self._start(delivery)
            else:
                self._waiting.add(delivery)
                self._start_waiting(arrived=message.stream_seq)
            for surplus, delay_s in self._waiting.surplus(now):
                await settle(self._bus, surplus.message, surplus.reply, Later(delay_s))
        elif self._wanted() <= 0:
            # More than this process can take: the server still served a pull from before a reconnect.
            await send_status(self._bus, reply, NAK)
        else:
            self._start(HeldDelivery(message, reply))
        self._taken.set()
        self._pulls.check()

    def _parsed(self, msg: Msg) -> WorkMessage | None:
        """Return a message of the consumer; None for any other message."""
        try:
            metadata = msg.metadata
        except NatsError:
            logger.warning("%s: ignored a message that does not come from a stream", msg.subject)
            return None
        if (metadata.stream, metadata.consumer) != (self._stream, self._durable):
            logger.warning("%s: ignored a message of stream %s", msg.subject, metadata.stream)
            return None
        return work_message(msg)

    def _start(self, item: HeldDelivery) -> None:
        self._in_work[item.message.stream_seq] = item
        task = self._group.create_task(self._handle(item))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_waiting(self, arrived: int | None = None) -> None:
        """Start the waiting messages that may take a slot; `arrived` is the sequence of a new one."""
        while self._waiting is not None:
            if self._waiting.resume():
                continue
            found = None if self._stopping else self._waiting.next()
            if found is not None:
                self._waiting.shares.take(found.tenant)
                found.waited = found.message.stream_seq != arrived
                self._start(found)
            elif not self._waiting.resume(again=True):
                return

    async def _in_turn(self, item: HeldDelivery) -> None:
        has_turn, item.has_turn = item.has_turn, False
        if self._waiting is None or has_turn or not (item.short or self._waiting.held):
            return
        self._short -= item.short
        item.short = False
        turn = self._waiting.turn(item.tenant)
        self._start_waiting()
        try:
            await turn
        finally:
            self._waiting.leave(turn)

    async def _handle(self, item: HeldDelivery) -> None:
        try:
            if item.waited:
                # Part of `ack_wait` has passed while the message waited for a slot.
                await send_status(self._bus, item.reply, IN_PROGRESS)
            message = replace(
                item.message,
                without_slot=partial(self._giving_back, item),
                in_turn=partial(self._in_turn, item),
            )
            outcome = await handle(self._bus, self._stream, self._handler, message, self._failures)
            await settle(self._bus, item.message, item.reply, outcome)
        except asyncio.CancelledError:
            # The handler has stopped, so another process need not wait until `ack_wait` expires.
            await send_status(self._bus, item.reply, NAK)
            raise
        finally:
            del self._in_work[item.message.stream_seq]
            self._short -= item.short
            self._ended += not item.short
            if self._waiting is not None:
                self._waiting.shares.give_back(item.tenant)
                self._start_waiting()
            self._pulls.check()

    @asynccontextmanager
    async def _giving_back(self, item: HeldDelivery) -> AsyncGenerator[None]:
        """Give the slot of a handler back while it waits, if the places of waiting handlers have room."""
        tenant, places = item.tenant, self._without_slot
        if self._waiting is None or places is None or not places.allows(tenant):
            yield
            return
        slots = self._waiting.shares
        places.take(tenant)
        slots.give_back(tenant)
        self._start_waiting()
        self._pulls.check()
        try:
            yield
        finally:
            # Take a slot even above the limit, because the handler is already in memory. No other handler
            # starts until a slot is free.
            slots.take(tenant)
            places.give_back(tenant)

    def _adapt(self) -> None:
        """Follow the load with the number of shared slots."""
        if self._limit is None or not isinstance(self._slots, Shares):
            return
        if self._waiting is not None:
            self._waiting.returns.adapt(self._ended / HEARTBEAT_S)
        self._ended = 0
        congested = self._congested = self._bus.reply_times.congested()
        self._slots.resize(
            self._limit.update(self._slots.used, congested=congested, wanted=bool(self._waiting))
        )
        self._start_waiting()
        self._pulls.check()

    async def _return(self, deliveries: list[HeldDelivery]) -> None:
        """Give messages back to the queue, which delivers them again at once."""
        for delivery in deliveries:
            await send_status(self._bus, delivery.reply, NAK)

    async def _send_heartbeats(self) -> None:
        while True:
            while not self._in_work and not self._waiting:
                self._taken.clear()
                await self._taken.wait()
            await set_within(self._heartbeat_now, HEARTBEAT_S)
            self._heartbeat_now.clear()
            self._adapt()
            for number, item in enumerate(tuple(self._in_work.values())):
                if number % HEARTBEATS_AT_ONCE == HEARTBEATS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if self._bus.connected and item.message.stream_seq in self._in_work:
                    await send_status(self._bus, item.reply, IN_PROGRESS)
            if self._waiting is not None and self._congested:
                # Other processes have no free slot either: returning messages would only cost the broker.
                for held in self._waiting.held:
                    await send_status(self._bus, held.reply, IN_PROGRESS)
            elif self._waiting is not None:
                await self._return(self._waiting.expired(asyncio.get_running_loop().time()))
