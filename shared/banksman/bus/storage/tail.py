"""Follow all messages of a stream from a position, or read those stored now: headers without payloads.

This serves data that is derived from all logs. Each process receives every message through a consumer in the
server's memory. The server refuses the 1001st consumer of a stream, so only services use this, never clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import DESCRIPTION, MSG_SIZE, STATUS, STATUS_NO_RESPONDERS, api
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.ids import new_id
from banksman.library_internals.nats_client import subscribe

logger = logging.getLogger(__name__)

BATCH = 500
"""Messages of one pull; the next pull is sent when all have arrived."""
EXPIRES_S = 30
"""Seconds after which the server ends a pull."""
HEARTBEAT_S = 5
"""Seconds between the server's heartbeats for a pull; after two missing ones the pull counts as lost."""
INACTIVE_S = 60
"""Seconds without a pull after which the server removes a consumer."""
RETRY_S = 0.5
"""Seconds before a new consumer replaces a failed one."""
SILENCE_S = 5.0
"""Seconds without a message after which the rest of the stored messages counts as unreadable or removed."""
FIRST_PULLS = 6
"""Attempts of the first pull: the servers of a cluster may still elect the leader of a new consumer."""
CONSUMER = "tail-"
"""Prefix of the names of these consumers."""

_NS = 1_000_000_000
_IDLE_HEARTBEAT = "100"
_PULL_ENDED = frozenset({"404", "408"})


@dataclass(frozen=True, slots=True)
class StoredHeaders:
    """A stored message without its payload."""

    subject: str
    stream_seq: int
    time: datetime
    """When the server stored it."""
    headers: Mapping[str, str]
    payload_bytes: int = 0
    pending: int = 0
    """Number of stored messages after this one."""


async def last_sequence(bus: Bus, stream: str) -> int:
    """Return the stream sequence of the last message; 0 for an empty stream."""
    info = await call(bus, api("STREAM.INFO", stream))
    return int(info["state"]["last_seq"])


async def tail(bus: Bus, stream: str, *, after: int) -> AsyncGenerator[StoredHeaders]:
    """Yield every message after a stream sequence, in order and without end; a lagging leader repeats some.

    Continues after reconnects, server restarts and elections.

    Raises:
        Unavailable: The connection is permanently closed.
    """
    async with _receiving(bus) as (inbox, arrived):
        while not bus.closed.is_set():
            try:
                # A damaged stream that lost its end gives the lost sequences to new messages.
                after = min(after, await last_sequence(bus, stream))
                consumer = _Consumer(bus, stream, inbox, arrived)
                await consumer.create({"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1})
                while True:
                    message = await consumer.next()
                    after = message.stream_seq
                    yield message
            except BanksmanError as error:
                logger.info("%s: a new consumer continues after %d: %s", stream, after, error)
            await asyncio.sleep(RETRY_S)
    raise Unavailable(f"{stream}: the connection to NATS is closed")


async def stored_headers(
    bus: Bus, stream: str, *, last_on: str | None = None
) -> AsyncGenerator[StoredHeaders]:
    """Yield the messages that are stored now, without those that the server cannot read.

    With `last_on`, a subject with wildcards, yields only the last message on each subject that matches.

    Raises:
        Unavailable: The server did not respond, or the connection was lost.
    """
    async with _receiving(bus) as (inbox, arrived):
        consumer = _Consumer(bus, stream, inbox, arrived)
        last = {"deliver_policy": "last_per_subject", "filter_subject": last_on}
        left = await consumer.create(last if last_on else {"deliver_policy": "all"})
        with contextlib.suppress(TimeoutError):
            while left:
                async with asyncio.timeout(SILENCE_S):
                    message = await consumer.next()
                left = min(left - 1, message.pending)
                yield message


@asynccontextmanager
async def _receiving(bus: Bus) -> AsyncGenerator[tuple[str, asyncio.Queue[Msg | None]]]:
    inbox, arrived = bus.nc.new_inbox(), asyncio.Queue[Msg | None]()

    async def received(msg: Msg) -> None:
        arrived.put_nowait(msg)

    subscription = await subscribe(bus.nc, f"{inbox}.*", received)
    # None marks a reconnect: messages may be lost, so a new consumer starts at the last received position.
    remove = bus.on_reconnect(lambda: arrived.put_nowait(None))
    try:
        yield inbox, arrived
    finally:
        remove()
        with contextlib.suppress(NatsError):
            await subscription.unsubscribe()


class _Consumer:
    """One consumer in the server, replaced as soon as a message is missing."""

    def __init__(self, bus: Bus, stream: str, inbox: str, arrived: asyncio.Queue[Msg | None]) -> None:
        self._bus = bus
        self._stream = stream
        self._name = new_id(CONSUMER)
        self._inbox = f"{inbox}.{self._name}"
        self._arrived = arrived
        self._outstanding = 0
        self._received = 0
        self._pulls = 0

    async def create(self, start: Mapping[str, str | int | None]) -> int:
        """Create it; return the number of messages that it will deliver."""
        config = {
            **start,
            "name": self._name,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * _NS,
        }
        # Messages of an earlier consumer must not count for this one.
        while not self._arrived.empty():
            self._arrived.get_nowait()
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        created = await call(self._bus, api("CONSUMER.CREATE", self._stream, self._name), body)
        return int(created["num_pending"])

    async def next(self) -> StoredHeaders:
        while True:
            if not self._outstanding:
                await self._pull()
            msg = await self._next_arrived()
            if msg.headers and STATUS in msg.headers and not msg.reply:
                await self._status(msg)
                continue
            try:
                metadata = msg.metadata
            except NatsError as error:
                raise Unavailable("a message does not come from a stream") from error
            if metadata.consumer != self._name:
                continue
            self._outstanding -= 1
            self._received += 1
            # Consumer sequences have no gaps, so a jump shows a lost message.
            if metadata.sequence.consumer != self._received:
                raise Unavailable("a message was lost in transit")
            headers = msg.headers or {}
            return StoredHeaders(
                msg.subject,
                metadata.sequence.stream,
                metadata.timestamp,
                headers,
                int(headers.get(MSG_SIZE, "0")),
                metadata.num_pending,
            )

    async def _pull(self) -> None:
        self._outstanding = BATCH
        self._pulls += 1
        body = {"batch": BATCH, "expires": EXPIRES_S * _NS, "idle_heartbeat": HEARTBEAT_S * _NS}
        target = api("CONSUMER.MSG.NEXT", self._stream, self._name)
        await self._bus.replies.send(target, json.dumps(body).encode(), self._inbox)

    async def _next_arrived(self) -> Msg:
        try:
            async with asyncio.timeout(2 * HEARTBEAT_S + 1):
                msg = await self._arrived.get()
        except TimeoutError as error:
            raise Unavailable("no heartbeat for a pull") from error
        if msg is None:
            raise Unavailable("the connection was lost")
        return msg

    async def _status(self, msg: Msg) -> None:
        headers = msg.headers or {}
        status = headers.get(STATUS, "")
        if msg.subject != self._inbox or status == _IDLE_HEARTBEAT:
            return
        if status == STATUS_NO_RESPONDERS and not self._received and self._pulls < FIRST_PULLS:
            await asyncio.sleep(RETRY_S)
        elif status not in _PULL_ENDED:
            reason = headers.get(DESCRIPTION, "its consumer does not respond")
            raise Unavailable(f"{self._stream}: a read ended with status {status}: {reason}")
        self._outstanding = 0
