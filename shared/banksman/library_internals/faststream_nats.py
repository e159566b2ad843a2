"""FastStream's NATS broker on a connection that exists already, and the declarations of its handlers.

FastStream 0.7 has no public way to use an existing connection, to pass a request that is no valid JSON to our
error handling, or to read what a handler declares. This module uses:

- `NatsBroker._connect`, `_connection`, `config.connect` and `config.connection_state.connect`
- `CoreSubscriber`, and of each subscriber `calls` and `subject.broker_address`
- of each call `handler`, `item_decoder` and `dependant` (FastDepends' description of the parameters)
- the context values `handler_` and `message`, and `CustomField.use` of FastDepends
- `fetch` and `unsubscribe`, the only methods that a pull subscriber calls on its subscription
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from fast_depends.library import CustomField
from faststream import AckPolicy, ContextRepo, StreamMessage
from faststream.nats import NatsBroker
from faststream.nats.subscriber.usecases import CoreSubscriber
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext

OnMessage = Callable[[Msg], Awaitable[None]]
Subscribe = Callable[[str, str, OnMessage], Awaitable[Subscription]]
"""Subscribes to a subject, in a queue group ("" for none), with a callback."""
OnReconnect = Callable[[Callable[[], None]], Callable[[], None]]
"""Registers a callback for reconnects; returns a function that removes it."""
Decoder = Callable[[StreamMessage[Msg]], Awaitable[Any]]


class ConnectedBroker(NatsBroker):
    """A broker on a connection that it neither opens nor closes; it acknowledges no message by itself."""

    def __init__(
        self,
        nc: Client,
        urls: list[str],
        *,
        subscribe: Subscribe,
        on_reconnect: OnReconnect,
        middlewares: Sequence[Any],
        stop_s: float,
    ) -> None:
        """Create the broker on connection `nc`; running handlers get `stop_s` seconds to end at a stop."""
        self._nc = nc
        self._subscribe_with = subscribe
        self._on_reconnect = on_reconnect
        super().__init__(
            urls,
            # FastStream's default policy deletes a message whose handler raises.
            ack_policy=AckPolicy.MANUAL,
            middlewares=middlewares,
            logger=None,
            graceful_timeout=stop_s,
        )

    async def _connect(self) -> Client:
        client = cast(Client, _Subscribing(self._nc, self._subscribe_with))
        self.config.connect(client)
        self.config.connection_state.connect(client, _LastingPulls(self._nc, self._on_reconnect))
        return self._nc

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        # FastStream would drain the connection stored here.
        self._connection = None
        await super().stop(exc_type, exc_val, exc_tb)


class _Subscribing:
    """A client with another method `subscribe`."""

    def __init__(self, nc: Client, subscribe: Subscribe) -> None:
        self._nc = nc
        self._subscribe = subscribe

    async def subscribe(self, subject: str, *, queue: str, cb: OnMessage, **_limits: Any) -> Subscription:
        return await self._subscribe(subject, queue, cb)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nc, name)


class _LastingPulls(JetStreamContext):
    """Pull subscriptions whose current pull ends at a reconnect.

    The server drops a pull with its connection, but nats-py waits until the pull expires, and would fetch no
    new messages meanwhile.
    """

    def __init__(self, nc: Client, on_reconnect: OnReconnect) -> None:
        super().__init__(nc)
        self._on_reconnect = on_reconnect

    async def pull_subscribe(self, *args: Any, **options: Any) -> JetStreamContext.PullSubscription:
        inner = await super().pull_subscribe(*args, **options)
        return cast(JetStreamContext.PullSubscription, _PullSubscription(inner, self._on_reconnect))


class _PullSubscription:
    def __init__(self, inner: JetStreamContext.PullSubscription, on_reconnect: OnReconnect) -> None:
        self._inner = inner
        self._pull: asyncio.Task[list[Msg]] | None = None
        self._remove = on_reconnect(self._reconnected)

    async def fetch(self, batch: int, timeout: float | None) -> list[Msg]:  # noqa: ASYNC109  # called by name
        """Return the next messages; raise `NatsTimeout` if none arrived or the connection was lost."""
        pull = self._pull = asyncio.create_task(self._inner.fetch(batch, timeout), name="pull")
        try:
            await asyncio.wait([pull])
        finally:
            pull.cancel()
        if pull.cancelled():
            raise NatsTimeout
        return pull.result()

    async def unsubscribe(self) -> None:
        self._remove()
        await self._inner.unsubscribe()

    def _reconnected(self) -> None:
        if self._pull is not None:
            self._pull.cancel()


class FromMessage(CustomField):
    """A parameter of a handler that is built from the message.

    FastStream's own `Context` and plain functions under `Depends` run in a thread pool, which doubles the CPU
    time of a request. A coroutine is awaited.
    """

    def __init__(self, build: Callable[[Msg], Any]) -> None:
        super().__init__(cast=False)
        self._build = build

    async def use(  # pyright: ignore[reportIncompatibleMethodOverride]  # FastDepends awaits a coroutine
        self, /, **kwargs: Any
    ) -> dict[str, Any]:
        message: StreamMessage[Msg] = kwargs["context__"].get_local("message")
        return kwargs | {str(self.param_name): self._build(message.raw_message)}


@dataclass(frozen=True, slots=True)
class DeclaredHandler:
    subscriber: Any
    item: Any

    @property
    def of_stream(self) -> bool:
        """Whether it handles the messages of a durable consumer, and not requests."""
        return not isinstance(self.subscriber, CoreSubscriber)

    @property
    def subject(self) -> str:
        return self.subscriber.subject.broker_address

    @property
    def body(self) -> Any:
        """The declared type of the body; None if it takes none. Known once the broker has started."""
        declared = [parameter.field_type for parameter in self.item.dependant.flat_params]
        return declared[0] if declared else None

    def decode_with(self, decoder: Decoder) -> None:
        """Decode messages with `decoder`, and not by a guess whether they are JSON."""
        self.item.item_decoder = decoder

    async def call(self, *arguments: Any) -> Any:
        return await self.item.handler(*arguments)


def declared_handlers(broker: NatsBroker) -> Iterator[DeclaredHandler]:
    for subscriber in broker.subscribers:
        for item in subscriber.calls:
            yield DeclaredHandler(subscriber, item)


def handles_request(context: ContextRepo) -> bool:
    """Return whether the current message is a request, and not of a durable consumer."""
    return isinstance(context.get_local("handler_"), CoreSubscriber)
