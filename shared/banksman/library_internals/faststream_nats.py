"""FastStream's NATS broker on a connection that exists already, and the declarations of its handlers.

FastStream 0.7 has no public way to use an existing connection, to pass a request that is no valid JSON to our
error handling, or to read what a handler declares. This module uses:

- `NatsBroker._connect`, `_connection`, `config.connect` and `config.connection_state.connect`
- of each subscriber `calls` and `subject.broker_address`
- of each call `handler`, `item_decoder` and `dependant` (FastDepends' description of the parameters)
- the context value `message`, and `CustomField.use` of FastDepends
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from fast_depends.library import CustomField
from faststream import StreamMessage
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

OnMessage = Callable[[Msg], Awaitable[None]]
Subscribe = Callable[[str, str, OnMessage], Awaitable[Subscription]]
"""Subscribes to a subject, in a queue group ("" for none), with a callback."""
Decoder = Callable[[StreamMessage[Msg]], Awaitable[Any]]


class ConnectedBroker(NatsBroker):
    """A broker on a connection that it neither opens nor closes."""

    def __init__(
        self, nc: Client, urls: list[str], *, subscribe: Subscribe, middlewares: Sequence[Any], stop_s: float
    ) -> None:
        """Create the broker on connection `nc`; running handlers get `stop_s` seconds to end at a stop."""
        self._nc = nc
        self._subscribe_with = subscribe
        self.is_stopping = False
        """Whether `stop` was called; messages still arrive until the running handlers have ended."""
        super().__init__(urls, middlewares=middlewares, logger=None, graceful_timeout=stop_s)

    async def _connect(self) -> Client:
        client = cast(Client, _Subscribing(self._nc, self._subscribe_with))
        self.config.connect(client)
        self.config.connection_state.connect(client, JetStreamContext(self._nc))
        return self._nc

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        self.is_stopping = True
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
