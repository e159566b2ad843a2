"""One connection to NATS and its health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Self

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from prometheus_client import Counter

from banksman.bus.errors import NO_RESPONSE, ConnectionReplaced, Disconnected, TimedOut
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.replies import ClientErrors, Replies
from banksman.bus.server_disk import SUSPECTED_S, ServerDisk
from banksman.bus.settings import CLIENT_BUDGETS_S, BusStats, NatsSettings
from banksman.contracts.errors import Forbidden, Unavailable
from banksman.library_internals.nats_client import SafeClient
from banksman.library_internals.nats_client import subscribe as nats_subscribe
from banksman.quotas.adaptive import ReplyTimes
from banksman.quotas.rates import Rarely
from banksman.runtime.background import Background

logger = logging.getLogger(__name__)

PUBLISHES_IN_FLIGHT = 16
"""Maximum number of durable publishes in flight per connection. A server that syncs every write has no group
commit, so additional publishes only wait longer."""

DISCONNECT_CHECK_S = 0.01
"""Seconds between checks while nats-py has noticed a disconnection but not reported it yet."""


GONE_S = 0.4
"""Seconds without a connection after which requests of clients are refused at once. A client of a cluster
usually has another server before."""
READY_S = 0.7
"""Seconds of the round trip that readiness makes; less than all checks may take."""

SLOW_S = 1.0
"""Seconds after which a reply of the broker counts as slow."""
SLOW_EVERY_S = 10.0
"""Minimum seconds between two lines about slow replies in the log. The metric counts all."""
_SLOW = Counter(
    "banksman_slow_broker_replies", f"Requests that the broker answered after {SLOW_S:g} s or never."
)

StoreRequest = Callable[[str, bytes, Mapping[str, str], float], Awaitable[Message]]
"""Sends a message to a stream and returns the reply: subject, payload, headers, seconds to wait."""


class Bus:
    """One nats-py connection and its inbox.

    It reconnects without limit. `closed` is set when it cannot reconnect any more, because the server refused
    the user or `close` was called; a service then ends.
    """

    def __init__(
        self,
        settings: NatsSettings,
        *,
        name: str,
        inbox_prefix: str = "_INBOX",
        serves_clients: bool = False,
        background: Background | None = None,
    ) -> None:
        """Create a bus of the user of `settings`, which `open` connects.

        Args:
            inbox_prefix: Prefix of the reply subjects; permissions restrict each user to its own prefix.
            serves_clients: True when a client waits for each request, which then takes at most
                `CLIENT_BUDGETS_S`, and fails at once while the connection is known to be gone. A publish to a
                server with a full disk, which responds but cannot store, fails after one attempt.
            background: Runs the background tasks of the users of this connection. A service passes the
                `background` of its health, so that a task that keeps failing makes the service not ready.
        """
        self.nc = SafeClient()
        self.inbox_prefix = inbox_prefix
        self.settings = settings
        self.name = name
        self.serves_clients = serves_clients
        self.stats = BusStats()
        self.background = background or Background()
        self.closed = asyncio.Event()
        self.disk = ServerDisk(settings)
        self.publishes = asyncio.Semaphore(PUBLISHES_IN_FLIGHT)
        self.reply_times = ReplyTimes()
        """Of publishes to streams and of requests to the JetStream API."""
        self._slow = Rarely(SLOW_EVERY_S)
        self.replies = Replies(self.nc)
        self.store_request: StoreRequest = self.request_ack
        """How durable publishes are sent; `direct_acks` sends them otherwise."""
        self._connected = asyncio.Event()
        self._reconnected_at = float("-inf")
        self._opened = False
        self._gone: asyncio.TimerHandle | None = None
        """Ends the patience of clients after the loss of the connection."""
        self._closing = False
        self._on_reconnect: list[Callable[[], None]] = []
        self._errors = ClientErrors(name, inbox_prefix, self.stats, self.replies)

    async def open(self) -> Self:
        """Connect, once; raise `Unavailable` if no server accepts the user within `connect_timeout_s`."""
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                await self.nc.connect(
                    name=self.name,
                    inbox_prefix=self.inbox_prefix,
                    error_cb=self._errors.report,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    closed_cb=self._closed,
                    **self.settings.connect_options(),
                )
                await self.replies.open()
        except TimeoutError as error:
            reason = self._no_connection()
            self._closing = True
            await self.nc.close()
            raise Unavailable(reason) from error
        self._opened = True
        self._connected.set()
        return self

    @property
    def connected(self) -> bool:
        """Whether the connection is up, as far as this process knows."""
        return self._connected.is_set() and self.nc.is_connected

    def reconnected_within(self, seconds: float) -> bool:
        """Return whether the connection was lost and restored in the last `seconds`."""
        return time.monotonic() - self._reconnected_at < seconds

    @property
    def server_version(self) -> str:
        """The version of the connected nats-server."""
        return str(self.nc.connected_server_version)

    @property
    def max_payload(self) -> int:
        """Limit of a message in bytes, headers included."""
        return self.nc.max_payload

    async def ready(self, timeout_s: float = 2.0) -> None:
        """Make a round trip to the server. Subscriptions made before are in force afterwards.

        Raises:
            Unavailable: No reply arrived in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self.wait_connected()
                    with contextlib.suppress(ConnectionReplaced):
                        await self.replies.echo()
                        return
        except TimeoutError as error:
            raise Unavailable(f"NATS did not respond within {timeout_s:g} s") from error

    async def problem(self) -> str | None:
        """Make a round trip and return what failed; None if it succeeded."""
        if not self._opened or self.replies.gone:
            return self._no_connection()
        try:
            await self.ready(READY_S)
        except (Unavailable, Forbidden) as error:
            return str(error)
        return None

    def _no_connection(self) -> str:
        # Without the credentials that a URL may contain.
        servers = ", ".join(url.rpartition("@")[2].rpartition("://")[2] for url in self.settings.urls)
        reason = str(self.nc.last_error or "")  # empty for an attempt that took too long
        return f"NATS at {servers}: no connection as {self.name!r}: {reason or 'no response'}"

    async def wait_connected(self) -> None:
        """Wait until a server is reachable.

        Raises:
            Unavailable: The connection is permanently closed, or it is gone and a client waits.
        """
        await self._connected.wait()
        if self.closed.is_set():
            raise Unavailable("the connection to NATS is closed")
        if self.replies.gone:
            raise Disconnected(self.name)

    def budget(self, seconds: float) -> float:
        """Return the seconds that a request to the broker may take: fewer while a client waits for it."""
        return min(seconds, CLIENT_BUDGETS_S[self.settings.replicas]) if self.serves_clients else seconds

    @asynccontextmanager
    async def measured(self) -> AsyncGenerator[None]:
        """Measure a request that the broker itself answers, with its wait in this process."""
        begun = time.monotonic()
        try:
            yield
        finally:
            took_s = time.monotonic() - begun
            self.reply_times.add(took_s)
            if took_s >= SLOW_S:
                _SLOW.inc()
                if slow := self._slow.due():
                    logger.warning(
                        "%s: the broker replied slowly, %d times; now after %.1f s", self.name, slow, took_s
                    )

    def may_recover(self, error: Exception) -> bool:
        """Return whether an attempt that raised `error` may succeed later on this connection."""
        ended = self.closed.is_set() or self.replies.gone
        return isinstance(error, Unavailable) and not ended

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a message that may be lost; raise `Unavailable` if the connection cannot buffer it."""
        try:
            await self.nc.publish(subject, payload, headers=dict(headers) if headers else None)
        except NatsError as error:
            raise Unavailable(f"{subject}: {error}", public=NO_RESPONSE) from error

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        *,
        until_reconnect: bool = False,
        unless: asyncio.Future[None] | None = None,
    ) -> bytes:
        """Send a request and return the first reply; as `Replies.request`.

        `timeout_s` includes the wait for the connection. A request that times out while disconnected is not
        sent.
        """
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                await self._wait_to_send()
        except TimeoutError as error:
            raise TimedOut(subject, timeout_s) from error
        left_s = (deadline.when() or 0.0) - asyncio.get_running_loop().time()
        reply = await self.replies.request(
            subject,
            payload,
            headers=headers,
            timeout_s=left_s,
            until_reconnect=until_reconnect,
            unless=unless,
        )
        return reply.data

    async def request_ack(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Message:
        """Send a message to a stream, which recognises repeats; return the reply as `Replies.request`.

        While a client waits, the reply is empty as soon as it is known that the server cannot store.
        """
        loop = asyncio.get_running_loop()
        suspicion = loop.call_later(SUSPECTED_S, self.disk.suspect) if self.serves_clients else None
        try:
            return await self.replies.request(
                subject,
                payload,
                headers=headers,
                timeout_s=timeout_s,
                until_reconnect=True,
                unless=self.disk.failed if self.serves_clients else None,
            )
        finally:
            if suspicion is not None:
                suspicion.cancel()

    async def _wait_to_send(self) -> None:
        """Wait until nats-py sends at once: while disconnected, it buffers messages and sends them later."""
        await self.wait_connected()
        while not self.nc.is_connected:
            # nats-py calls `disconnected_cb` a moment after it notices the loss.
            await asyncio.sleep(DISCONNECT_CHECK_S)
            await self.wait_connected()

    async def subscribe(
        self,
        subject: str,
        callback: Callable[[Message], Awaitable[None]],
        queue: str | None = None,
        *,
        pending_messages: int = 65_536,
        pending_bytes: int = 32 * 1024 * 1024,
    ) -> BusSubscription:
        """Call `callback` for each message, in order and one at a time; `subject` may contain wildcards.

        Args:
            callback: Its exceptions are logged and counted.
            queue: A queue group, of which one member receives each message; None for no group.
            pending_messages: Maximum number of waiting messages. Further messages are dropped, which the
                callbacks of `on_slow_consumer` report; the sender is not notified.
            pending_bytes: Maximum number of waiting bytes, with the same effect.
        """

        async def received(msg: Msg) -> None:
            await callback(Message(msg.subject, msg.data, msg.reply, msg.headers or {}))

        inner = await nats_subscribe(
            self.nc,
            subject,
            received,
            queue=queue or "",
            pending_messages=pending_messages,
            pending_bytes=pending_bytes,
        )
        return BusSubscription((inner,))

    async def listen(self, subject: str, callback: Callable[[Message], None]) -> BusSubscription:
        """Call `callback`, which must not block, for each message on arrival; its exceptions are logged.

        The subscription has no task, so that it is cheap enough for one per run. No message is dropped.
        """

        def received(subject: str, data: bytes, reply: str, headers: Mapping[str, str]) -> None:
            callback(Message(subject, data, reply, headers))

        return BusSubscription((await self.nc.listen(subject, received),))

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, which must not block, after each reconnect; return a function that removes it."""
        self._on_reconnect.append(callback)
        return lambda: self._on_reconnect.remove(callback)

    def on_slow_consumer(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call `callback` with each subject that lost messages; return a function that removes it."""
        self._errors.on_slow_consumer.append(callback)
        return lambda: self._errors.on_slow_consumer.remove(callback)

    def on_loss(self, callback: Callable[[], None], subject: str | None = None) -> Callable[[], None]:
        """Call `callback`, which must not block, when messages may be lost.

        That is after each reconnect, and when the subscription to `subject` (None: any) dropped messages.
        Return a function that removes the callback.
        """
        removers = (
            self.on_reconnect(callback),
            self.on_slow_consumer(lambda dropped: callback() if subject in (None, dropped) else None),
        )

        def remove() -> None:
            for one in removers:
                one()

        return remove

    async def close(self) -> None:
        self._closing = True
        await self.nc.close()
        await self._closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _disconnected(self) -> None:
        self._connected.clear()
        if self.serves_clients:
            self._gone = asyncio.get_running_loop().call_later(GONE_S, self._give_up)
        if not self._closing:
            logger.warning("%s: connection to NATS lost", self.name)

    def _give_up(self) -> None:
        """Refuse the requests of clients, which can wait for the connection themselves."""
        self.replies.lost()
        self._connected.set()  # wakes the waiters of `wait_connected`, which then check `gone`

    async def _reconnected(self) -> None:
        self.stats.reconnects += 1
        self._reconnected_at = time.monotonic()
        self._stop_giving_up()
        self._connected.set()
        logger.info("%s: connection to NATS restored", self.name)
        self.replies.reconnected()
        for callback in tuple(self._on_reconnect):
            callback()

    def _stop_giving_up(self) -> None:
        if self._gone is not None:
            self._gone.cancel()

    async def _closed(self) -> None:
        self._stop_giving_up()
        if not self._closing:
            logger.critical("%s: NATS closed the connection permanently: %s", self.name, self.nc.last_error)
        self.closed.set()
        self._connected.set()  # wakes the waiters of `wait_connected`, which then check `closed`
        self.replies.close()
