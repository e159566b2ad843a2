"""Requests and their answers over one inbox subscription.

nats-py's own `request` lets a waiter whose connection broke wait out its time. Here it learns of the new
connection at once and may ask again, and a request may have many answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from banksman.bus.client import subscribe
from banksman.bus.errors import ConnectionLost, MessageTooLarge, NoResponders, TimedOut
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.contracts.errors import BanksmanError, Forbidden, Unavailable


@dataclass(slots=True, eq=False)
class _Waiter:
    subject: str
    received: Callable[[Message], None]
    failed: Callable[[BanksmanError], None]
    until_reconnect: bool


class Replies:
    """The inbox of one connection."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._prefix = ""
        self._requests = 0
        self._waiters: dict[str, _Waiter] = {}

    async def open(self) -> None:
        """Subscribe the inbox."""
        self._prefix = self._nc.new_inbox()
        await subscribe(self._nc, f"{self._prefix}.*", self._received)

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        until_reconnect: bool = False,
    ) -> Message:
        """Publish and wait for the first answer.

        Args:
            subject: Where to ask.
            payload: What to ask.
            timeout_s: Seconds to wait.
            headers: Sent with it.
            until_reconnect: True gives up as soon as the connection was lost and stands again: the answer
                may have gone with the old one. For what is safe to ask twice.

        Raises:
            Unavailable: `NoResponders`, `TimedOut`, `ConnectionLost`, or the connection is closed.
            Forbidden: this user may not publish there.
            MessageTooLarge: more than the server accepts.
        """
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def received(message: Message) -> None:
            if not answered.done():
                answered.set_result(message)

        def failed(error: BanksmanError) -> None:
            if not answered.done():
                answered.set_exception(error)

        with self.expect(subject, received, failed, until_reconnect=until_reconnect) as inbox:
            await self.send(subject, payload, inbox, headers)
            try:
                async with asyncio.timeout(timeout_s):
                    message = await answered
            except TimeoutError as error:
                raise TimedOut(subject, timeout_s) from error
        if message.status == STATUS_NO_RESPONDERS and not message.data:
            raise NoResponders(subject)
        return message

    async def echo(self) -> None:
        """Send a message to this very inbox and wait until it comes back; the caller sets the deadline.

        nats-py's own `flush` and `rtt` overtake what is still buffered, and one that is given up breaks the
        connection when its answer comes after all.

        Raises:
            Unavailable: the connection is closed or was lost meanwhile.
            Forbidden: the inbox is not this user's.
        """
        returned: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def received(message: Message) -> None:
            if not returned.done():
                returned.set_result(message)

        def failed(error: BanksmanError) -> None:
            if not returned.done():
                returned.set_exception(error)

        with self.expect(None, received, failed, until_reconnect=True) as inbox:
            await self.send(inbox, b"", "")
            await returned

    async def send(
        self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish with a reply subject.

        Raises:
            Unavailable: the connection is closed, or has been down until its buffer was full.
            MessageTooLarge: more than the server accepts.
        """
        try:
            await self._nc.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)
        except MaxPayloadError as error:
            raise MessageTooLarge(subject, len(payload), self._nc.max_payload) from error
        except NatsError as error:
            raise Unavailable(f"{subject}: {error}") from error

    @contextlib.contextmanager
    def expect(
        self,
        subject: str | None,
        received: Callable[[Message], None],
        failed: Callable[[BanksmanError], None],
        *,
        until_reconnect: bool = False,
    ) -> Generator[str]:
        """A reply subject whose messages go to `received` for as long as the block runs.

        Args:
            subject: Where is asked; None where the reply subject itself is.
            received: Takes what comes.
            failed: Takes why nothing will come.
            until_reconnect: Whether an answer that may have gone with a connection is given up.
        """
        self._requests += 1
        token = str(self._requests)
        inbox = f"{self._prefix}.{token}"
        self._waiters[token] = _Waiter(subject or inbox, received, failed, until_reconnect)
        try:
            yield inbox
        finally:
            del self._waiters[token]

    def reconnected(self) -> None:
        """Tell those whose answer may have gone with the old connection."""
        for waiter in tuple(self._waiters.values()):
            if waiter.until_reconnect:
                waiter.failed(ConnectionLost(waiter.subject))

    def forbidden(self, subject: str) -> None:
        """Tell those who published to a subject that the server refused; nats-py gives it in lower case."""
        for waiter in tuple(self._waiters.values()):
            if waiter.subject.lower() == subject:
                waiter.failed(Forbidden(f"{subject}: this user may not publish there"))

    def close(self) -> None:
        """Tell all that no answer will come."""
        for waiter in tuple(self._waiters.values()):
            waiter.failed(Unavailable(f"{waiter.subject}: the connection to NATS is closed"))

    async def _received(self, msg: Msg) -> None:
        if waiter := self._waiters.get(msg.subject.rpartition(".")[2]):
            waiter.received(Message(msg.subject, msg.data, msg.reply, msg.headers or {}))
