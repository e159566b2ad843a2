"""FastStream's broker on the connection of a service, and what happens around each handler.

A request whose handler raises gets an error envelope. The outcome that a handler returns settles a message of
a stream.

A handler of a durable consumer gets one message at a time. A handler whose rest takes long returns
`Continued`, and the consumer's next message is handled at once. The message stays in work until its rest has
an outcome. Tenants share the places; a message without a place is delivered again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.bus.queues.handling import (
    IN_PROGRESS,
    NAK,
    Continued,
    FailureCounts,
    Later,
    Leave,
    Outcome,
    WorkMessage,
    handle,
    send_status,
    settle,
)
from banksman.bus.queues.waiting import ReturnTimes, tenant_of
from banksman.bus.queues.work import HEARTBEAT_S
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.library_internals.faststream_nats import ConnectedBroker, OnMessage, handles_request
from banksman.library_internals.nats_client import subscribe
from banksman.quotas.places import Shares
from banksman.runtime.background import BackgroundTask

logger = logging.getLogger(__name__)

HANDLERS_END_S = 4.0
"""Seconds that all running handlers together get at a stop. A client repeats an interrupted request; the
server redelivers the message of a stream."""
INTAKE_MESSAGES = 16_384
INTAKE_BYTES = 16 * 1024 * 1024
"""Maximum number and bytes of requests of one subject that wait for an intake; further ones are dropped."""
PLACES = 16
"""Messages of all consumers of a process whose handling continues at a time."""

Intake = Callable[[str, str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Receives the subject, the reply subject and the handler of each request. An intake returns at once: the
requests of one subject reach it one after the other."""


def work_message(raw: Msg) -> WorkMessage:
    """Return the stored message that a durable consumer delivered."""
    metadata = raw.metadata
    return WorkMessage(
        raw.subject, raw.data, raw.headers or {}, metadata.sequence.stream, metadata.num_delivered
    )


class SharedConnectionBroker(ConnectedBroker):
    """FastStream's broker on the connection of a service."""

    def __init__(self, bus: Bus, intake: Intake | None) -> None:
        self.at_once: dict[str, OnMessage] = {}
        """By subject: the function called in place of FastStream's dispatch."""
        self._bus = bus
        self._intake = intake
        failures: defaultdict[tuple[str, str], FailureCounts] = defaultdict(FailureCounts)
        """By stream and consumer."""
        continuations = self._continuations = Continuations(bus)

        def rules(msg: Any, /, *, context: ContextRepo) -> _Rules:
            return _Rules(msg, context=context, bus=bus, failures=failures, continuations=continuations)

        super().__init__(
            bus.nc,
            bus.settings.urls,
            subscribe=self._subscribe,
            on_reconnect=bus.on_reconnect,
            middlewares=(rules,),
            stop_s=HANDLERS_END_S,
        )

    async def _subscribe(self, subject: str, queue: str, callback: OnMessage) -> Subscription:
        callback, intake = self.at_once.get(subject, callback), self._intake
        if intake is None:
            return await subscribe(self._bus.nc, subject, callback, queue=queue)

        async def received(msg: Msg) -> None:
            await intake(msg.subject, msg.reply, lambda: callback(msg))

        # An intake returns at once, so few messages wait in the client; these limits bound them.
        return await subscribe(
            self._bus.nc,
            subject,
            received,
            queue=queue,
            pending_messages=INTAKE_MESSAGES,
            pending_bytes=INTAKE_BYTES,
        )

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + HANDLERS_END_S
        await super().stop(exc_type, exc_val, exc_tb)
        await self._continuations.stop(max(0.0, ends_at - clock()))


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
        failures: Mapping[tuple[str, str], FailureCounts],
        continuations: Continuations,
    ) -> None:
        super().__init__(msg, context=context)
        self._bus = bus
        self._failures = failures
        self._continuations = continuations

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> Any:
        if handles_request(self.context):
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
    """Return the encoded reply of a handler, or the envelope of its error; raises `NoReply` as it does."""
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
    failures: FailureCounts,
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


@dataclass(slots=True)
class _Running:
    message: WorkMessage
    reply: str
    """The subject for the ack of the newest delivery; the deliveries before it may have expired."""


class Continuations:
    """The messages of a process whose handling continues; at most one of each subject."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._shares = Shares(PLACES)
        self._returns = ReturnTimes()
        self._running: dict[str, _Running] = {}
        """By subject."""
        self._tasks: set[BackgroundTask] = set()

    def runs(self, message: WorkMessage, reply: str) -> bool:
        """Return whether the rest of a message already runs; its outcome then acks this newer delivery."""
        running = self._running.get(message.subject)
        if running is None or running.message.stream_seq != message.stream_seq:
            return False
        running.reply = reply
        return True

    async def start(
        self, stream: str, rest: Continued, message: WorkMessage, reply: str, failures: FailureCounts
    ) -> None:
        """Start the rest of a message, or return the message to the queue if it has no place."""
        tenant = tenant_of(message)
        if message.subject in self._running or not self._shares.allows(tenant):
            delay_s = self._returns.delay_s(tenant, asyncio.get_running_loop().time())
            await settle(self._bus, message, reply, Later(delay_s))
            return
        running = self._running[message.subject] = _Running(message, reply)
        self._shares.take(tenant)

        async def handler(_message: WorkMessage) -> Outcome:
            return await rest.rest()

        async def finish() -> None:
            try:
                async with held(self._bus, lambda: running.reply):
                    outcome = await handle(self._bus, stream, handler, message, failures)
                    await settle(self._bus, message, running.reply, outcome)
            except asyncio.CancelledError:
                # The rest has stopped, so another process need not wait until `ack_wait` expires.
                await send_status(self._bus, running.reply, NAK)
                raise

        def ended() -> None:
            del self._running[message.subject]
            self._shares.give_back(tenant)
            self._tasks.discard(task)

        task = self._bus.background.run("continued message", finish)
        self._tasks.add(task)
        task.when_ended(ended)

    async def stop(self, within_s: float) -> None:
        """Give the running ones `within_s` seconds to end, and cancel the others."""
        async with asyncio.TaskGroup() as group:
            for task in self._tasks:
                group.create_task(_stop(task, within_s))


async def _stop(task: BackgroundTask, within_s: float) -> None:
    await task.ended(within_s)
    await task.stop()


@asynccontextmanager
async def held(bus: Bus, reply: Callable[[], str]) -> AsyncGenerator[None]:
    """Keep the server from redelivering a message, whose newest delivery is acknowledged on `reply()`."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await send_status(bus, reply(), IN_PROGRESS)

    async with bus.background.running("heartbeat", beat):
        yield
