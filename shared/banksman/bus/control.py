"""The control plane: FastStream's subscribers on the connection we have, under our rules.

FastStream decodes nothing here and acknowledges nothing by itself. Its default acknowledgement policy deletes
a message whose handler raises, its decoding comes before any rule of ours, and a request whose handler raises
gets no answer: so handlers take raw messages, their outcome decides, and an error is an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

from faststream import AckPolicy
from faststream.message import StreamMessage
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from faststream.specification import AsyncAPI
from nats.aio.client import Client
from nats.aio.msg import Msg

from banksman.bus.asyncapi import Bodies, with_bodies
from banksman.bus.connection import Bus
from banksman.bus.envelope import error_envelope
from banksman.bus.messages import Message
from banksman.bus.outcomes import IN_PROGRESS, Handler, WorkMessage, handle, say, settle
from banksman.bus.work import HEARTBEAT_S
from banksman.contracts.errors import BanksmanError

logger = logging.getLogger(__name__)

HANDLERS_END_S = 4.0
"""Seconds that running handlers get at the end, all at once; what is cut off comes or is asked again."""

Responder = Callable[[Message], Awaitable[bytes | None]]
"""Answers a request; None sends no answer. What it raises is answered with an error envelope."""


class ControlPlane:
    """What a service serves over NATS besides its hot paths; as a context manager it is subscribed inside."""

    def __init__(self, bus: Bus, *, title: str, version: str = "1", description: str | None = None) -> None:
        self.bus = bus
        self.broker = _SharedConnectionBroker(bus)
        self._title = title
        self._version = version
        self._description = description
        self._documented: dict[str, Bodies] = {}

    def serve(
        self,
        subject: str,
        respond: Responder,
        *,
        queue: str | None = None,
        concurrency: int = 16,
        request: Any = None,
        reply: Any = None,
        title: str | None = None,
        description: str | None = None,
    ) -> None:
        """Answer requests on a subject.

        Args:
            subject: May hold wildcards.
            respond: Gets the request as it came.
            queue: Of those in one queue, one gets each request.
            concurrency: Requests answered at once.
            request: Model, or union of models, of the request's body, for the subject reference.
            reply: Likewise of the answer's.
            title: The channel's name there.
            description: Its text there.
        """

        async def answered(message: NatsMessage) -> bytes | None:
            return await _respond(respond, message.raw_message)

        self.broker.subscriber(
            subject,
            queue=queue or "",
            max_workers=concurrency,
            title=title or subject,
            description=description,
        )(answered)
        self._documented[title or subject] = Bodies(request, reply)

    def consume(
        self,
        durable: str,
        stream: str,
        handler: Handler,
        *,
        subject: str,
        payload: Any = None,
        title: str | None = None,
        description: str | None = None,
    ) -> None:
        """Serve a durable consumer, one message at a time, in order.

        Outcomes are those of `bus.work`; where many messages are in flight, that loop serves.

        Args:
            durable: A consumer that `streams.provision` made.
            stream: Its stream.
            handler: Safe to run twice for a message.
            subject: The consumer's filter.
            payload: Model, or union of models, of the body, for the subject reference.
            title: The channel's name there.
            description: Its text there.
        """

        async def handled(message: NatsMessage) -> None:
            await _handle(self.bus, stream, handler, message.raw_message)

        # More than one worker on a pull subscriber runs messages twice.
        self.broker.subscriber(
            subject,
            stream=JStream(stream, declare=False),
            durable=durable,
            pull_sub=PullSub(batch_size=1, timeout=1),
            ack_policy=AckPolicy.MANUAL,
            inbox_prefix=f"{self.bus.inbox_prefix}.".encode(),
            no_reply=True,
            title=title or subject,
            description=description,
        )(handled)
        self._documented[title or subject] = Bodies(payload)

    async def start(self) -> None:
        """Subscribe everything; nobody who asks afterwards finds no responder, unless NATS is away."""
        await self.broker.start()
        # The server reads in order: when this comes back it knows the subscriptions. A lost connection makes
        # them anew.
        await self.bus.problem()

    async def stop(self) -> None:
        """Unsubscribe, and let running handlers finish; the connection stays."""
        await self.broker.stop()

    def asyncapi(self) -> dict[str, Any]:
        """The subject reference, AsyncAPI 3."""
        factory = AsyncAPI(
            self.broker, title=self._title, version=self._version, description=self._description
        )
        document = cast(dict[str, Any], json.loads(factory.to_specification().to_json()))
        return with_bodies(document, self._documented)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _SharedConnectionBroker(NatsBroker):
    """FastStream's broker on a connection that is not its own: it neither opens nor closes it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        super().__init__(
            bus.settings.urls,
            ack_policy=AckPolicy.MANUAL,
            apply_types=False,
            decoder=_undecoded,
            logger=None,
            graceful_timeout=HANDLERS_END_S,
        )

    async def _connect(self) -> Client:
        self.config.connect(self._bus.nc)
        return self._bus.nc

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        self._connection = None  # or it would be drained
        await super().stop(exc_type, exc_val, exc_tb)


async def _undecoded(message: StreamMessage[Any]) -> StreamMessage[Any]:
    return message


async def _respond(respond: Responder, msg: Msg) -> bytes | None:
    try:
        return await respond(Message(msg.subject, msg.data, msg.reply, msg.headers or {}))
    except BanksmanError as error:
        return error_envelope(error)
    except Exception as error:
        logger.exception("%s: answering failed", msg.subject)
        return error_envelope(error)


async def _handle(bus: Bus, stream: str, handler: Handler, msg: Msg) -> None:
    metadata = msg.metadata
    message = WorkMessage(
        msg.subject, msg.data, msg.headers or {}, metadata.sequence.stream, metadata.num_delivered
    )
    async with _held(bus, msg.reply):
        outcome = await handle(bus, stream, handler, message)
        await settle(bus, message, msg.reply, outcome)


@asynccontextmanager
async def _held(bus: Bus, reply: str) -> AsyncGenerator[None]:
    """Keep a message ours for as long as the block runs."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await say(bus, reply, IN_PROGRESS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
