"""Requests and their replies over one inbox subscription, and the errors that nats-py reports.

nats-py's own `request` waits for its whole timeout even if the connection breaks. Here a request fails at the
reconnect and may be retried, and a request may have many replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, SlowConsumerError

from banksman.bus import errors
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.bus.settings import BusStats
from banksman.contracts.errors import BanksmanError, Forbidden, Unavailable
from banksman.library_internals.nats_client import SafeClient

logger = logging.getLogger(__name__)

SAME_WARNING_S = 10.0
"""Seconds until a warning is logged again."""
WARNINGS_REMEMBERED = 100
_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


@dataclass(slots=True, eq=False)
class _Waiter:
    subject: str
    received: Callable[[Message], None]
    failed: Callable[[BanksmanError], None]
    until_reconnect: bool


def _first() -> tuple[asyncio.Future[Message], Callable[[Message], None], Callable[[BanksmanError], None]]:
    """Return a future and the callbacks that resolve it with a message or an error; the first call wins."""
    waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def received(message: Message) -> None:
        if not waiting.done():
            waiting.set_result(message)

    def failed(error: BanksmanError) -> None:
        if not waiting.done():
            waiting.set_exception(error)

    return waiting, received, failed


class Replies:
    """The inbox of a connection."""

    def __init__(self, nc: SafeClient) -> None:
        self._nc = nc
        self._prefix = ""
        self._requests = 0
        self.gone = False
        """Whether requests are refused until the next reconnect, because clients have waited long enough."""
        self._waiters: dict[str, _Waiter] = {}

    @property
    def inbox(self) -> str:
        """The reply subjects without their last token."""
        return self._prefix

    async def open(self) -> None:
        self._prefix = self._nc.new_inbox()
        await self._nc.listen(f"{self._prefix}.*", self._received)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        until_reconnect: bool = False,
        token: str | None = None,
        reply: str | None = None,
        unless: asyncio.Future[None] | None = None,
    ) -> Message:
        """Publish a request and wait for the first reply.

        Args:
            until_reconnect: True fails at a reconnect, because the reply may have been lost with the old
                connection. For requests that are safe to repeat.
            token: A token from `new_token`, with which another subscription delivers the reply; None creates
                one.
            reply: The reply subject of another subscription; None for a subject of this inbox.
            unless: A future that ends the wait when it is done; then an empty message is returned.

        Raises:
            Unavailable: `NoResponders`, `TimedOut`, `ConnectionReplaced`, or the connection is closed.
            MessageTooLarge: The request exceeds the server's limit.
        """
        loop = asyncio.get_running_loop()
        replied, received, failed = _first()

        def ended(_: asyncio.Future[None]) -> None:
            received(Message(subject, b""))

        expected = self.expect(subject, received, failed, until_reconnect=until_reconnect, token=token)
        with expected as inbox:
            await self.send(subject, payload, reply or inbox, headers)
            if unless is not None:
                unless.add_done_callback(ended)
            # This costs a quarter of `asyncio.timeout`, and each run has some twenty requests.
            timer = loop.call_later(timeout_s, lambda: failed(errors.TimedOut(subject, timeout_s)))
            try:
                message = await replied
            finally:
                timer.cancel()
                if unless is not None:
                    # The future may outlive many requests, and would keep their callbacks.
                    unless.remove_done_callback(ended)
        if message.status == STATUS_NO_RESPONDERS and not message.data:
            raise errors.NoResponders(subject)
        return message

    async def echo(self) -> None:
        """Send a message to this inbox and wait until it arrives; the caller sets the deadline.

        nats-py's `flush` and `rtt` are unsuitable: they overtake buffered messages, and the late reply to a
        cancelled one breaks the connection.

        Raises:
            Unavailable: The connection is closed or was lost.
        """
        returned, received, failed = _first()
        with self.expect(None, received, failed, until_reconnect=True) as inbox:
            await self.send(inbox, b"", "")
            await returned

    async def send(
        self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish with a reply subject.

        Raises:
            Unavailable: The connection is closed, or it is down and its buffer is full, or it is `gone`.
            MessageTooLarge: The message exceeds the server's limit.
        """
        if self.gone:
            raise errors.Disconnected(subject)
        try:
            await self._nc.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)
        except MaxPayloadError as error:
            raise errors.MessageTooLarge(subject, len(payload), self._nc.max_payload) from error
        except NatsError as error:
            raise Unavailable(f"{subject}: {error}", public=errors.NO_RESPONSE) from error

    def new_token(self) -> str:
        """Return the token of a request that is about to be sent."""
        self._requests += 1
        return str(self._requests)

    def deliver(self, token: str, message: Message) -> None:
        """Pass a reply to the request with this token, if it still waits."""
        if waiter := self._waiters.get(token):
            waiter.received(message)

    @contextlib.contextmanager
    def expect(
        self,
        subject: str | None,
        received: Callable[[Message], None],
        failed: Callable[[BanksmanError], None],
        *,
        until_reconnect: bool = False,
        token: str | None = None,
    ) -> Generator[str]:
        """Provide a reply subject and pass its messages to `received` while the block runs.

        Args:
            subject: The subject of the request; None if the message is published on the reply subject itself.
            failed: Called with the reason why no reply can arrive.
            until_reconnect: True calls `failed` at a reconnect.
            token: As in `request`.
        """
        token = token or self.new_token()
        inbox = f"{self._prefix}.{token}"
        self._waiters[token] = _Waiter(subject or inbox, received, failed, until_reconnect)
        try:
            yield inbox
        finally:
            del self._waiters[token]

    def lost(self) -> None:
        """Fail all requests, and further ones until `reconnected`."""
        self.gone = True
        for waiter in tuple(self._waiters.values()):
            waiter.failed(errors.Disconnected(waiter.subject))

    def reconnected(self) -> None:
        """Fail the requests with `until_reconnect`: their replies may be lost with the old connection."""
        self.gone = False
        for waiter in tuple(self._waiters.values()):
            if waiter.until_reconnect:
                waiter.failed(errors.ConnectionReplaced(waiter.subject))

    def forbidden(self, subject: str) -> bool:
        """Fail the requests on a subject (in lower case) that the server refused; return False if none."""
        refused = [waiter for waiter in self._waiters.values() if waiter.subject.lower() == subject]
        for waiter in refused:
            waiter.failed(Forbidden(f"{subject}: this user may not publish there"))
        return bool(refused)

    def close(self) -> None:
        for waiter in tuple(self._waiters.values()):
            waiter.failed(Unavailable(f"{waiter.subject}: the connection to NATS is closed"))

    def _received(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str]) -> None:
        self.deliver(subject.rpartition(".")[2], Message(subject, data, reply, headers))


class ClientErrors:
    """Counts and logs the errors of one connection, and passes them to affected requests and callbacks."""

    def __init__(self, name: str, inbox_prefix: str, stats: BusStats, replies: Replies) -> None:
        self.on_slow_consumer: list[Callable[[str], None]] = []
        """Called with each subject whose messages were dropped."""
        self._name = name
        self._inbox = f"{inbox_prefix.lower()}."
        self._stats = stats
        self._replies = replies
        self._logged_at: dict[str, float] = {}
        """The monotonic time of the last log line, by warning."""

    async def report(self, error: Exception) -> None:
        match error:
            case SlowConsumerError():
                self._stats.slow_consumer += 1
                subject = error.sub.subject if error.sub else error.subject
                self._log_rarely(f"messages dropped: the queue of {subject} is full")
                for callback in tuple(self.on_slow_consumer):
                    callback(subject)
            # The server reports a forbidden publish only here, never to the publisher.
            case _ if "permissions violation" in str(error).lower():
                denied = _DENIED_PUBLISH.search(str(error))
                requested = denied is not None and self._replies.forbidden(denied[1])
                if denied and not requested and self._is_late_reply(denied[1]):
                    logger.info("%s: a reply came too late: %s", self._name, error)
                    return
                self._stats.forbidden += 1
                logger.error("%s: %s", self._name, error)
            case NatsError() | OSError() | TimeoutError():
                self._stats.errors += 1
                self._log_rarely(f"{self._name}: {str(error) or type(error).__name__}")
            case _:
                self._stats.errors += 1
                logger.error("%s: a subscription's callback failed", self._name, exc_info=error)

    def _is_late_reply(self, subject: str) -> bool:
        """Return whether a refused subject is the inbox of another user.

        The server permits a reply for a limited time, and only on the connection that received the request.
        It refuses a reply that is sent after a partition, for which no process waits any more.
        """
        inbox = subject.lower().startswith("_inbox")
        return inbox and not subject.lower().startswith(self._inbox)

    def _log_rarely(self, warning: str) -> None:
        # nats-py reports each dropped message of a flood, and each failed attempt to connect.
        now = time.monotonic()
        if now - self._logged_at.get(warning, -SAME_WARNING_S) >= SAME_WARNING_S:
            if len(self._logged_at) >= WARNINGS_REMEMBERED:
                self._logged_at.clear()
            self._logged_at[warning] = now
            logger.warning(warning)
