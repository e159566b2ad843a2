"""The control plane: the handlers that a service declares with FastStream, under our rules.

A service declares its handlers on a `NatsRouter`: decorated functions with a typed body, a typed return
value, and `Received` or `Work` where a handler needs the message itself. `ControlPlane` serves them on the
connection that the service has, and adds what FastStream's defaults lack (see `docs/decisions/0016`):

- A body is decoded and validated inside our error handling, as strict JSON of the declared type. FastStream's
  own decoder guesses whether bytes are JSON, and a body that does not validate is left without a reply or an
  acknowledgement.
- A request whose handler raises gets an error envelope. FastStream sends no reply.
- The outcome that a handler returns settles a message of a stream. FastStream's default policy deletes a
  message whose handler raises.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Annotated, Any, Self, cast

from fast_depends.library import CustomField
from faststream import (
    AckPolicy,
    AsyncAPI,
    BaseMiddleware,
    ContextRepo,
    FastStream,
    StreamMessage,
)
from faststream.nats import NatsBroker, NatsRouter, PullSub
from faststream.nats.subscriber.usecases import CoreSubscriber
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel, TypeAdapter

from banksman.bus.client import subscribe
from banksman.bus.connection import Bus
from banksman.bus.decoding import decoded
from banksman.bus.envelope import error_envelope
from banksman.bus.lasting_pulls import LastingPulls
from banksman.bus.messages import Message
from banksman.bus.outcomes import IN_PROGRESS, Outcome, WorkMessage, handle, send_status, settle
from banksman.bus.reply_schemas import add_replies
from banksman.bus.settings import Replicas
from banksman.bus.work import HEARTBEAT_S
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.wire import parse_as

logger = logging.getLogger(__name__)

HANDLERS_END_S = 4.0
"""Seconds that running handlers get at the end, all together. A request that is cut off is repeated by its
client; a message of a stream is redelivered."""
CONCURRENCY = 16
"""Requests of one subject that a process handles at a time, where a service sets no other number."""
INTAKE_MESSAGES = 16_384
INTAKE_BYTES = 16 * 1024 * 1024
"""Requests of one subject, and their bytes, that wait for an intake; further ones are dropped."""
PULL_S: Mapping[Replicas, float] = {1: 20.0, 3: 1.0}
"""Seconds after which a durable consumer pulls again, by number of replicas. One server loses a pull only
with the connection, which `LastingPulls` notices. Three servers also lose it with the consumer's leader."""


def one_at_a_time(bus: Bus) -> PullSub:
    """Return how a durable consumer pulls.

    More workers or a larger batch would handle messages twice; `bus.work` serves consumers with many messages
    in flight.
    """
    return PullSub(batch_size=1, timeout=PULL_S[bus.settings.replicas])


def inbox_of(bus: Bus) -> bytes:
    """Return the inbox prefix for a durable consumer: a user may subscribe to its own inbox only."""
    return f"{bus.inbox_prefix}.".encode()


class _FromMessage(CustomField):
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


def _message(raw: Msg) -> Message:
    return Message(raw.subject, raw.data, raw.reply, raw.headers or {})


def _work_message(raw: Msg) -> WorkMessage:
    metadata = raw.metadata
    return WorkMessage(
        raw.subject, raw.data, raw.headers or {}, metadata.sequence.stream, metadata.num_delivered
    )


Received = Annotated[Message, _FromMessage(_message)]
"""Parameter of a handler that receives the request as it was sent."""
Work = Annotated[WorkMessage, _FromMessage(_work_message)]
"""Parameter of a handler that receives a message of a durable consumer as it is stored."""

Decode = Callable[[Message], Any]
"""Decodes and validates a request's body. Raises `BanksmanError`, which becomes the reply."""


Intake = Callable[[str, str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Receives the subject and the reply subject of each request, and what handles it. It returns at once: the
requests of one subject reach it one after the other."""


def json_body(body: Any) -> Decode:
    """Return the decoder of a request's body: strict JSON of the declared type, nothing coerced.

    Args:
        body: The declared type; None for a handler that takes no body, whose requests may hold any bytes.
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
        title: str,
        version: str = "1",
        description: str | None = None,
        body: Callable[[Any], Decode] = json_body,
        intake: Intake | None = None,
    ) -> None:
        """Take the handlers of a router.

        Args:
            bus: The connection, which stays open at the end.
            router: The handlers. Those of a durable consumer return an `Outcome`, the others a model, bytes
                or None.
            title: The service's name in the AsyncAPI document.
            version: The version in that document.
            description: The text in that document.
            body: Returns the decoder for the declared type of a request's body.
            intake: Decides when each request is handled, and whether. None handles as many at a time as
                their handler has workers.
        """
        self._bus = bus
        self._broker = _SharedConnectionBroker(bus, intake)
        self._broker.include_router(router)
        for subscriber in self._broker.subscribers:
            for item in subscriber.calls:
                of_stream = not isinstance(subscriber, CoreSubscriber)
                item.item_decoder = _work_decoder(item) if of_stream else _request_decoder(item, body)
        self._specification = AsyncAPI(self._broker, title=title, version=version, description=description)
        self._app = FastStream(self._broker, logger=None, after_startup=[self._served])

    async def start(self) -> None:
        """Subscribe every handler. A request that is sent afterwards finds them, unless NATS is away."""
        await self._app.start()

    async def stop(self) -> None:
        """Unsubscribe, and give running handlers `HANDLERS_END_S` seconds to finish."""
        await self._app.stop()

    def asyncapi(self) -> dict[str, Any]:
        """Return the AsyncAPI 3 document of the handlers: their subjects, bodies and replies."""
        document = cast(dict[str, Any], json.loads(self._specification.to_specification().to_json()))
        for subscriber in self._broker.subscribers:
            if isinstance(subscriber, CoreSubscriber):
                add_replies(document, subscriber.specification.name, subscriber.calls[0])
        return document

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _served(self) -> None:
        # The server reads in order: after this round trip it knows the subscriptions. After a lost connection
        # nats-py subscribes them again.
        await self._bus.problem()


class _SharedConnectionBroker(NatsBroker):
    """FastStream's broker on a connection that it neither opens nor closes."""

    def __init__(self, bus: Bus, intake: Intake | None) -> None:
        self._bus = bus
        self._intake = intake

        def rules(msg: Any, /, *, context: ContextRepo) -> _Rules:
            return _Rules(msg, context=context, bus=bus)

        super().__init__(
            bus.settings.urls,
            ack_policy=AckPolicy.MANUAL,
            middlewares=(rules,),
            logger=None,
            graceful_timeout=HANDLERS_END_S,
        )

    async def _connect(self) -> Client:
        nc = self._bus.nc
        client = nc if self._intake is None else cast(Client, _WithIntake(nc, self._intake))
        self.config.connect(client)
        self.config.connection_state.connect(client, LastingPulls(self._bus))
        return nc

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        # FastStream drains the connection that it finds here.
        self._connection = None
        await super().stop(exc_type, exc_val, exc_tb)


class _WithIntake:
    """A connection whose subscriptions pass their messages to an intake; everything else is the client's."""

    def __init__(self, nc: Client, intake: Intake) -> None:
        self._nc = nc
        self._intake = intake

    async def subscribe(
        self, subject: str, *, queue: str, cb: Callable[[Msg], Awaitable[None]], **_limits: Any
    ) -> Subscription:
        async def received(msg: Msg) -> None:
            await self._intake(msg.subject, msg.reply, lambda: cb(msg))

        # An intake returns at once, so little waits in the client; what does is bounded.
        return await subscribe(
            self._nc,
            subject,
            received,
            queue=queue,
            pending_messages=INTAKE_MESSAGES,
            pending_bytes=INTAKE_BYTES,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nc, name)


class _Rules(BaseMiddleware[Any, Any]):
    """What happens around each handler: error envelopes for requests, outcomes for messages of streams."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, bus: Bus) -> None:
        super().__init__(msg, context=context)
        self._bus = bus

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> Any:
        if isinstance(self.context.get_local("handler_"), CoreSubscriber):
            reconnects = self._bus.stats.reconnects
            response = await _respond(call_next, msg)
            if self._bus.stats.reconnects != reconnects:
                # The server permits the reply on the connection that received the request only.
                msg.reply_to = ""
            return response
        await _settle(self._bus, call_next, msg)
        return None


async def _respond(call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> bytes | None:
    try:
        reply: BaseModel | bytes | None = await call_next(msg)
    except BanksmanError as error:
        if error.code is ErrorCode.INTERNAL:
            logger.error("%s: the handler failed: %s", msg.raw_message.subject, error)
        return error_envelope(error)
    except Exception as error:
        logger.exception("%s: the handler failed", msg.raw_message.subject)
        return error_envelope(error)
    return reply.model_dump_json().encode() if isinstance(reply, BaseModel) else reply


async def _settle(bus: Bus, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> None:
    raw = msg.raw_message

    async def handler(_message: WorkMessage) -> Outcome:
        return await call_next(msg)

    message = _work_message(raw)
    async with _held(bus, raw.reply):
        outcome = await handle(bus, raw.metadata.stream, handler, message)
        await settle(bus, message, raw.reply, outcome)


@asynccontextmanager
async def _held(bus: Bus, reply: str) -> AsyncGenerator[None]:
    """Keep the server from redelivering a message while the block runs."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await send_status(bus, reply, IN_PROGRESS)

    async with bus.background.running("heartbeat", beat):
        yield


def _request_decoder(item: Any, body: Callable[[Any], Decode]) -> Callable[[StreamMessage[Msg]], Any]:
    decode: Decode | None = None

    # FastStream uses a decoder with one parameter instead of its own.
    async def decoder(message: StreamMessage[Msg]) -> Any:
        nonlocal decode
        decode = decode or body(_body_type(item))
        return decode(_message(message.raw_message))

    return decoder


def _work_decoder(item: Any) -> Callable[[StreamMessage[Msg]], Any]:
    adapter: TypeAdapter[Any] | None = None

    async def decoder(message: StreamMessage[Msg]) -> Any:
        nonlocal adapter
        if (body := _body_type(item)) is None:
            return None
        adapter = adapter or TypeAdapter(body)
        return decoded(adapter, _work_message(message.raw_message))

    return decoder


def _body_type(item: Any) -> Any:
    """Return the declared type of a handler's body; None when the handler takes none."""
    declared = [parameter.field_type for parameter in item.dependant.flat_params]
    return declared[0] if declared else None
