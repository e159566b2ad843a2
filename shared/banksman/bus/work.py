"""The work loop: pulls as many messages as there are free slots, and holds each while its handler runs.

One pull is outstanding at a time. It asks for as many messages as slots are free; when it is used up and a
slot frees, the next one goes out at once. A message stays ours for as long as its handler runs (`in progress`
every 0.8 s against an `ack_wait` of 3 s); when this process dies, another gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banksman.bus.client import subscribe
from banksman.bus.connection import Bus
from banksman.bus.names import DESCRIPTION, STATUS, api
from banksman.bus.outcomes import (
    IN_PROGRESS,
    NAK,
    Done,
    Handler,
    Later,
    Leave,
    Outcome,
    WorkMessage,
    handle,
    send_status,
    settle,
)
from banksman.contracts.errors import Unavailable
from banksman.runtime.backoff import Backoff

__all__ = ["Done", "Handler", "Later", "Leave", "Outcome", "WorkMessage", "work"]

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.8
"""Seconds between two signs that a handler still runs; four fit into `ack_wait`."""
PULL_EXPIRES_S = 30
PULL_HEARTBEAT_S = 1
"""Seconds between the server's signs that it still holds a pull; after two without, the pull counts as
lost."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

_IDLE_HEARTBEAT = "100"
_REQUEST_TIMEOUT = "408"


async def work(
    bus: Bus,
    stream: str,
    durable: str,
    handler: Handler,
    *,
    slots: int,
    stop: asyncio.Event | None = None,
    grace_s: float = 20.0,
) -> None:
    """Serve a durable consumer until `stop` is set, or for ever.

    Goes on over reconnects, restarts of the server and elections. When `stop` is set it pulls no more, gives
    the running handlers `grace_s` seconds, cancels those that are left, and returns: their messages go to
    others.

    Args:
        bus: The connection.
        stream: The consumer's stream.
        durable: The consumer.
        handler: Called for each message, up to `slots` at a time, never twice at once for the same one.
        slots: Messages handled at once.
        stop: Ends the work in order.
        grace_s: Seconds that running handlers get then.

    Raises:
        Unavailable: the connection is closed for good.
    """
    await _Worker(bus, stream, durable, handler, slots).run(stop or asyncio.Event(), grace_s)


@dataclass(slots=True)
class _Held:
    """A message whose handler runs."""

    message: WorkMessage
    reply: str


class _Worker:
    def __init__(self, bus: Bus, stream: str, durable: str, handler: Handler, slots: int) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._handler = handler
        self._slots = slots
        self._inbox = bus.nc.new_inbox()
        self._held: dict[int, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._stopping = False
        self._pulls = 0
        self._outstanding = 0
        """Messages that the current pull may still bring."""
        self._heard_at = 0.0
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._pause_s = 0.0
        """Seconds until the next pull, after one that failed."""

    async def run(self, stop: asyncio.Event, grace_s: float) -> None:
        subscription = await subscribe(self._bus.nc, f"{self._inbox}.*", self._received)
        remove = self._bus.on_reconnect(self._reconnected)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                heartbeats = self._bus.background.run("heartbeats", self._beat_for_ever)
                try:
                    await self._pull_until(stop)
                    # Still subscribed: what the last pull brings goes back at once.
                    self._stopping = True
                    if self._tasks:
                        await asyncio.wait(self._tasks, timeout=grace_s)
                finally:
                    self._stopping = True
                    # First, so that what is given back does not come here again.
                    with contextlib.suppress(NatsError):
                        await subscription.unsubscribe()
                    await heartbeats.stop()
                    for task in tuple(self._tasks):
                        task.cancel()
        finally:
            remove()
        if not stop.is_set():
            raise Unavailable(f"{self._stream}/{self._durable}: the connection to NATS is closed")

    async def _pull_until(self, stop: asyncio.Event) -> None:
        stopped = self._group.create_task(stop.wait())
        stopped.add_done_callback(lambda _: self._changed.set())
        try:
            while not stop.is_set() and not self._bus.closed.is_set():
                self._changed.clear()
                if self._outstanding and self._silent_for() > 2 * PULL_HEARTBEAT_S:
                    logger.info("%s/%s: the server lost a pull", self._stream, self._durable)
                    self._outstanding = 0
                if not self._outstanding and self._free > 0:
                    await self._pull()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PULL_HEARTBEAT_S):
                        await self._changed.wait()
        finally:
            stopped.cancel()

    @property
    def _free(self) -> int:
        return self._slots - len(self._held)

    def _silent_for(self) -> float:
        return asyncio.get_running_loop().time() - self._heard_at

    async def _pull(self) -> None:
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        if not self._bus.connected:
            return
        self._pulls += 1
        self._outstanding = self._free
        self._heard_at = asyncio.get_running_loop().time()
        body = {
            "batch": self._outstanding,
            "expires": PULL_EXPIRES_S * 1_000_000_000,
            "idle_heartbeat": PULL_HEARTBEAT_S * 1_000_000_000,
        }
        target = api("CONSUMER.MSG.NEXT", self._stream, self._durable)
        try:
            await self._bus.replies.send(target, json.dumps(body).encode(), f"{self._inbox}.{self._pulls}")
        except Unavailable as error:
            self._pull_failed(str(error))

    def _pull_failed(self, reason: str) -> None:
        logger.info("%s/%s: pulling again: %s", self._stream, self._durable, reason)
        self._outstanding = 0
        self._pause_s = self._backoff.next_s()
        self._changed.set()

    def _pulls_work(self) -> None:
        self._pause_s = 0.0
        self._backoff.reset()

    def _reconnected(self) -> None:
        self._outstanding = 0
        self._changed.set()
        self._beat_now.set()

    async def _received(self, msg: Msg) -> None:
        if msg.subject.startswith(self._inbox):
            # A message of the stream comes under its own subject; only the server's words come to the inbox.
            self._status(msg)
            return
        self._heard_at = asyncio.get_running_loop().time()
        self._outstanding = max(0, self._outstanding - 1)
        self._pulls_work()
        try:
            metadata = msg.metadata
        except NatsError:
            logger.warning("%s: ignored a message that is not of a stream", msg.subject)
            return
        if (metadata.stream, metadata.consumer) != (self._stream, self._durable):
            logger.warning("%s: ignored a message of %s", msg.subject, metadata.stream)
            return
        message = WorkMessage(
            msg.subject, msg.data, msg.headers or {}, metadata.sequence.stream, metadata.num_delivered
        )
        await self._take(message, msg.reply)

    def _status(self, msg: Msg) -> None:
        if msg.subject.rpartition(".")[2] != str(self._pulls):
            return
        self._heard_at = asyncio.get_running_loop().time()
        headers = msg.headers or {}
        match headers.get(STATUS):
            case status if status == _IDLE_HEARTBEAT:
                pass
            case status if status == _REQUEST_TIMEOUT:
                self._outstanding = 0
                self._pulls_work()
                self._changed.set()
            case status:
                self._pull_failed(f"{status} {headers.get(DESCRIPTION, '')}")

    async def _take(self, message: WorkMessage, reply: str) -> None:
        if held := self._held.get(message.stream_seq):
            # Redelivered to its own holder, whose signs were lost: the handler goes on under it.
            held.reply = reply
        elif self._stopping or self._free <= 0:
            # More than was asked for: a pull from before a reconnect was still answered.
            await send_status(self._bus, reply, NAK)
        else:
            held = self._held[message.stream_seq] = _Held(message, reply)
            task = self._group.create_task(self._handle(held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._changed.set()

    async def _handle(self, held: _Held) -> None:
        try:
            outcome = await handle(self._bus, self._stream, self._handler, held.message)
            await settle(self._bus, held.message, held.reply, outcome)
        except asyncio.CancelledError:
            # Its handler has stopped, so another may have it without waiting for `ack_wait`.
            await send_status(self._bus, held.reply, NAK)
            raise
        finally:
            del self._held[held.message.stream_seq]
            self._changed.set()

    async def _beat_for_ever(self) -> None:
        while True:
            self._beat_now.clear()
            for held in tuple(self._held.values()):
                if self._bus.connected:
                    await send_status(self._bus, held.reply, IN_PROGRESS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._beat_now.wait()
