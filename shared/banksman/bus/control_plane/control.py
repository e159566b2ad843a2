"""The control plane: the handlers that a service declares with FastStream, under our rules.

A service declares its handlers on a `NatsRouter`: decorated functions with a typed body, a typed return
value, and `Received` where a handler needs the message itself. `ControlPlane` serves them on the
connection that the service has, and adds what FastStream's defaults lack (see `docs/decisions/0016`):

- A body is decoded and validated inside our error handling, as strict JSON of the declared type. FastStream's
  own decoder guesses whether bytes are JSON, and a body that does not validate is left without a reply.
- A request whose handler raises gets an error envelope. FastStream sends no reply.

The messages of durable consumers are handled by `queues.work`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from typing import Annotated, Any, Self

from faststream import FastStream, StreamMessage
from faststream.nats import NatsRouter
from nats.aio.msg import Msg
from pydantic import BaseModel, TypeAdapter

from banksman.bus.connection import Bus
from banksman.bus.control_plane.broker import Intake, NoReply, SharedConnectionBroker, respond
from banksman.bus.messages import Message
from banksman.contracts.errors import BadInput
from banksman.contracts.wire import parse_as
from banksman.library_internals.faststream_nats import (
    DeclaredHandler,
    Decoder,
    FromMessage,
    declared_handlers,
)

CONCURRENCY = 16
"""Requests of one subject that a process handles at a time, where a service sets no other number."""


def _message(raw: Msg) -> Message:
    return Message(raw.subject, raw.data, raw.reply, raw.headers or {})


Received = Annotated[Message, FromMessage(_message)]
"""Parameter of a handler that receives the request as it was sent."""


def check_subject(message: Message, tenant: str, last: str) -> None:
    """Refuse a body that disagrees with its subject: permissions apply to the subject only."""
    if message.subject.split(".")[3:] != [tenant, last]:
        raise BadInput("subject", message.subject, f"a subject that ends in {tenant}.{last}")


Decode = Callable[[Message], Any]
"""Decodes and validates a request's body. Raises `BanksmanError`, which becomes the reply."""


def json_body(body: Any) -> Decode:
    """Return the decoder of a request's body: strict JSON of type `body`, nothing coerced.

    None is for a handler that takes no body, whose requests may hold any bytes.
    """
    if body is None:
        return lambda message: None
    adapter = TypeAdapter[Any](body)
    return lambda message: parse_as(adapter, message.data)


class ControlPlane:
    """The handlers of a service besides its hot paths; as a context manager it serves them."""

    def __init__(
        self,
        bus: Bus,
        router: NatsRouter,
        *,
        body: Callable[[Any], Decode] = json_body,
        intake: Intake | None = None,
        at_once: Collection[str] = (),
    ) -> None:
        """Create the control plane of a router's handlers.

        Args:
            router: The handlers, which return a model, bytes or None.
            body: Returns the decoder for the declared type of a request's body.
            intake: Decides whether and when each request is handled. None limits concurrent requests to the
                workers of their handler.
            at_once: Subjects whose handlers take the body and the message, and return at once. They are
                called without FastStream's dispatch, which triples the CPU time of a request (decision 97).
        """
        self._bus = bus
        self._broker = SharedConnectionBroker(bus, intake)
        self._broker.include_router(router)
        for handler in declared_handlers(self._broker):
            decode = _decode_request(handler, body)
            handler.decode_with(_request_decoder(decode))
            if handler.subject in at_once:
                self._broker.at_once[handler.subject] = self._replying(handler, decode)
        self._app = FastStream(self._broker, logger=None, after_startup=[self._served])

    async def __aenter__(self) -> Self:
        """Subscribe every handler. On return the server knows the subscriptions, unless NATS is away."""
        await self._app.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Unsubscribe, and give running handlers `broker.HANDLERS_END_S` seconds to finish."""
        await self._app.stop()

    def _replying(self, handler: DeclaredHandler, decode: Decode) -> Callable[[Msg], Awaitable[None]]:
        async def handled(message: Message) -> BaseModel | None:
            return await handler.call(decode(message), message)

        async def received(raw: Msg) -> None:
            with contextlib.suppress(NoReply):
                reply = await respond(handled(_message(raw)), raw.subject)
                if reply is not None and raw.reply:
                    await self._bus.publish(raw.reply, reply)

        return received

    async def _served(self) -> None:
        # The server processes a connection in order: after this round trip it knows the subscriptions.
        # nats-py subscribes again after a reconnect.
        await self._bus.problem()


def _decode_request(handler: DeclaredHandler, body: Callable[[Any], Decode]) -> Decode:
    decode = cache(lambda: body(handler.body))
    return lambda message: decode()(message)


# FastStream replaces its own decoder only with one that has exactly one parameter.
def _request_decoder(decode: Decode) -> Decoder:
    async def decoder(message: StreamMessage[Msg]) -> Any:
        return decode(_message(message.raw_message))

    return decoder
