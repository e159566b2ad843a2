"""FastStream's broker on the existing connection of a service, and the middleware of each handler.

A request whose handler raises gets an error envelope. The outcome that a handler returns settles a message of
a stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, cast

from faststream import AckPolicy, BaseMiddleware, ContextRepo, StreamMessage
from faststream.nats import NatsBroker
from faststream.nats.subscriber.usecases import CoreSubscriber
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from banksman.bus.client import subscribe
from banksman.bus.connection import Bus
from banksman.bus.continuations import Continuations, held
from banksman.bus.declared_parameters import DeclaredParameters
from banksman.bus.envelope import error_envelope
from banksman.bus.lasting_pulls import LastingPulls
from banksman.bus.outcomes import Continued, Failures, Leave, Outcome, WorkMessage, handle, settle
from banksman.contracts.errors import BanksmanError, ErrorCode

logger = logging.getLogger(__name__)

HANDLERS_END_S = 4.0
"""Seconds that all running handlers together get at a stop. A client repeats an interrupted request; the
server redelivers the message of a stream."""
INTAKE_MESSAGES = 16_384
INTAKE_BYTES = 16 * 1024 * 1024
"""Maximum number and bytes of requests of one subject that wait for an intake; further ones are dropped."""

Intake = Callable[[str, str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Receives the subject, the reply subject and the handler of each request. An intake returns at once: the
requests of one subject reach it one after the other."""


def work_message(raw: Msg) -> WorkMessage:
    """Return the stored message that a durable consumer delivered."""
    metadata = raw.metadata
    return WorkMessage(
        raw.subject, raw.data, raw.headers or {}, metadata.sequence.stream, metadata.num_delivered
    )


class SharedConnectionBroker(NatsBroker):
    """FastStream's broker on a connection that it neither opens nor closes."""

    def __init__(self, bus: Bus, intake: Intake | None) -> None:
        self.at_once: dict[str, Callable[[Msg], Awaitable[None]]] = {}
        """By subject: the function called in place of FastStream's dispatch."""
        self._bus = bus
        self._intake = intake
        failures: defaultdict[tuple[str, str], Failures] = defaultdict(Failures)
        """By stream and consumer."""
        continuations = self._continuations = Continuations(bus)

        def rules(msg: Any, /, *, context: ContextRepo) -> _Rules:
            return _Rules(msg, context=context, bus=bus, failures=failures, continuations=continuations)

        super().__init__(
            bus.settings.urls,
            ack_policy=AckPolicy.MANUAL,
            middlewares=(rules,),
            logger=None,
            graceful_timeout=HANDLERS_END_S,
            serializer=DeclaredParameters(),
        )

    async def _connect(self) -> Client:
        nc = self._bus.nc
        client = nc if self._intake is None else cast(Client, _WithIntake(nc, self._intake))
        if self.at_once:
            client = cast(Client, _AtOnce(client, self.at_once))
        self.config.connect(client)
        self.config.connection_state.connect(client, LastingPulls(self._bus))
        return nc

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the handlers, and leave the connection open."""
        # FastStream would drain the connection stored here.
        self._connection = None
        clock = asyncio.get_running_loop().time
        ends_at = clock() + HANDLERS_END_S
        await super().stop(exc_type, exc_val, exc_tb)
        await self._continuations.stop(max(0.0, ends_at - clock()))


class _WithIntake:
    """A client whose subscriptions pass their messages to an intake."""

    def __init__(self, nc: Client, intake: Intake) -> None:
        self._nc = nc
        self._intake = intake

    async def subscribe(
        self, subject: str, *, queue: str, cb: Callable[[Msg], Awaitable[None]], **_limits: Any
    ) -> Subscription:
        async def received(msg: Msg) -> None:
            await self._intake(msg.subject, msg.reply, lambda: cb(msg))

        # An intake returns at once, so few messages wait in the client; these limits bound them.
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


class _AtOnce:
    """A client whose subscriptions to some subjects call other functions."""

    def __init__(self, nc: Client, at_once: Mapping[str, Callable[[Msg], Awaitable[None]]]) -> None:
        self._nc = nc
        self._at_once = at_once

    async def subscribe(
        self, subject: str, *, queue: str, cb: Callable[[Msg], Awaitable[None]], **_limits: Any
    ) -> Subscription:
        return await subscribe(self._nc, subject, self._at_once.get(subject, cb), queue=queue)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nc, name)


class NoReply(Exception):
    """Raised by a handler that leaves a request without a reply. For None, FastStream sends an empty one."""


class _Rules(BaseMiddleware[Any, Any]):
    """Middleware of each handler: sends error envelopes for requests, settles messages of streams."""

    def __init__(
        self,
        msg: Any,
        /,
        *,
        context: ContextRepo,
        bus: Bus,
        failures: Mapping[tuple[str, str], Failures],
        continuations: Continuations,
    ) -> None:
        super().__init__(msg, context=context)
        self._bus = bus
        self._failures = failures
        self._continuations = continuations

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> Any:
        if isinstance(self.context.get_local("handler_"), CoreSubscriber):
            reconnects = self._bus.stats.reconnects
            try:
                response = await respond(call_next(msg), msg.raw_message.subject)
            except NoReply:
                msg.reply_to = ""
                return None
            if self._bus.stats.reconnects != reconnects:
                # The server permits the reply only on the connection that received the request.
                msg.reply_to = ""
            return response
        metadata = msg.raw_message.metadata
        failures = self._failures[metadata.stream, metadata.consumer]
        await _settle(self._bus, call_next, msg, failures, self._continuations)
        return None


async def respond(handling: Awaitable[BaseModel | bytes | None], subject: str) -> bytes | None:
    """Return the encoded reply of a request's handler, or the envelope of its error.

    Raises:
        NoReply: The handler leaves the request without a reply.
    """
    try:
        reply = await handling
    except NoReply:
        raise
    except BanksmanError as error:
        if error.code is ErrorCode.INTERNAL:
            logger.error("%s: the handler failed: %s", subject, error)
        return error_envelope(error)
    except Exception as error:
        logger.exception("%s: the handler failed", subject)
        return error_envelope(error)
    return reply.model_dump_json().encode() if isinstance(reply, BaseModel) else reply


async def _settle(
    bus: Bus,
    call_next: Callable[[Any], Any],
    msg: StreamMessage[Msg],
    failures: Failures,
    continuations: Continuations,
) -> None:
    raw, message = msg.raw_message, work_message(msg.raw_message)
    if continuations.runs(message, raw.reply):
        return
    rest: Continued | None = None

    async def handler(_message: WorkMessage) -> Outcome:
        nonlocal rest
        outcome = await call_next(msg)
        if isinstance(outcome, Continued):
            rest = outcome
            return Leave()
        return outcome

    stream = raw.metadata.stream
    async with held(bus, lambda: raw.reply):
        outcome = await handle(bus, stream, handler, message, failures)
        if rest is None:
            await settle(bus, message, raw.reply, outcome)
        else:
            await continuations.start(stream, rest, message, raw.reply, failures)
