"""A stream's messages as they are stored, from a position on: subjects and headers, without their bytes.

For what follows from all logs together. Each process that asks gets every message; the server keeps a
consumer in memory for it, so this is for services, of which there are few, and never for clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banksman.bus.client import subscribe
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import DESCRIPTION, STATUS, api
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.ids import new_id

logger = logging.getLogger(__name__)

BATCH = 500
"""Messages of one pull; the next goes out when they have come."""
EXPIRES_S = 30
HEARTBEAT_S = 5
"""Seconds between the server's signs that it still holds a pull; after two without, it counts as lost."""
INACTIVE_S = 60
"""Seconds after which the server forgets a consumer that nobody pulls from."""
RETRY_S = 0.5
CONSUMER = "tail-"
"""Begins the names of these consumers."""

_NS = 1_000_000_000
_IDLE_HEARTBEAT = "100"
_PULL_ENDED = frozenset({"404", "408"})


@dataclass(frozen=True, slots=True)
class StoredHeaders:
    """A message without its bytes."""

    subject: str
    stream_seq: int
    time: datetime
    """When the server stored it."""
    headers: Mapping[str, str]


async def last_sequence(bus: Bus, stream: str) -> int:
    """Stream sequence of the last message; 0 for none so far."""
    info = await call(bus, api("STREAM.INFO", stream))
    return int(info["state"]["last_seq"])


async def tail(bus: Bus, stream: str, *, after: int) -> AsyncGenerator[StoredHeaders]:
    """Every message after a stream sequence, each once, in order; never ends by itself.

    Goes on over reconnects, restarts of the server and elections.

    Raises:
        Unavailable: the connection is closed for good.
    """
    inbox, heard = bus.nc.new_inbox(), asyncio.Queue[Msg | None]()

    async def received(msg: Msg) -> None:
        heard.put_nowait(msg)

    subscription = await subscribe(bus.nc, f"{inbox}.*", received)
    remove = bus.on_reconnect(lambda: heard.put_nowait(None))
    try:
        while not bus.closed.is_set():
            try:
                consumer = _Consumer(bus, stream, inbox, heard)
                await consumer.create(after)
                while True:
                    message = await consumer.next()
                    after = message.stream_seq
                    yield message
            except BanksmanError as error:
                logger.info("%s is read on from %d: %s", stream, after, error)
            await asyncio.sleep(RETRY_S)
    finally:
        remove()
        with contextlib.suppress(NatsError):
            await subscription.unsubscribe()
    raise Unavailable(f"{stream}: the connection to NATS is closed")


class _Consumer:
    """One consumer in the server, given up at the first sign that a message was lost on the way."""

    def __init__(self, bus: Bus, stream: str, inbox: str, heard: asyncio.Queue[Msg | None]) -> None:
        self._bus = bus
        self._stream = stream
        self._name = new_id(CONSUMER)
        self._inbox = f"{inbox}.{self._name}"
        self._heard = heard
        self._outstanding = 0
        self._received = 0

    async def create(self, after: int) -> None:
        config = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * _NS,
        }
        while not self._heard.empty():
            self._heard.get_nowait()
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        await call(self._bus, api("CONSUMER.CREATE", self._stream, self._name), body)

    async def next(self) -> StoredHeaders:
        while True:
            if not self._outstanding:
                await self._pull()
            msg = await self._next_heard()
            if msg.headers and STATUS in msg.headers and not msg.reply:
                self._status(msg)
                continue
            try:
                metadata = msg.metadata
            except NatsError as error:
                raise Unavailable("a message that is not of a stream") from error
            if metadata.consumer != self._name:
                continue
            self._outstanding -= 1
            self._received += 1
            if metadata.sequence.consumer != self._received:
                raise Unavailable("a message was lost on the way")
            return StoredHeaders(msg.subject, metadata.sequence.stream, metadata.timestamp, msg.headers or {})

    async def _pull(self) -> None:
        self._outstanding = BATCH
        body = {"batch": BATCH, "expires": EXPIRES_S * _NS, "idle_heartbeat": HEARTBEAT_S * _NS}
        target = api("CONSUMER.MSG.NEXT", self._stream, self._name)
        await self._bus.replies.send(target, json.dumps(body).encode(), self._inbox)

    async def _next_heard(self) -> Msg:
        try:
            async with asyncio.timeout(2 * HEARTBEAT_S + 1):
                msg = await self._heard.get()
        except TimeoutError as error:
            raise Unavailable("the server lost a pull") from error
        if msg is None:
            raise Unavailable("the connection was lost meanwhile")
        return msg

    def _status(self, msg: Msg) -> None:
        headers = msg.headers or {}
        status = headers.get(STATUS, "")
        if msg.subject != self._inbox or status == _IDLE_HEARTBEAT:
            return
        if status not in _PULL_ENDED:
            raise Unavailable(f"{status} {headers.get(DESCRIPTION, '')}")
        self._outstanding = 0
