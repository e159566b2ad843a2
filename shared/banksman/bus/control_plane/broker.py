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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.bus.queues import handling
from banksman.bus.queues.waiting import ReturnTimes, tenant_of
from banksman.bus.queues.work import HEARTBEAT_S
from banksman.contracts.errors import BanksmanError, ErrorCode, Overloaded
from banksman.library_internals.faststream_nats import ConnectedBroker, OnMessage, handles_request
from banksman.library_internals.nats_client import subscribe
from banksman.quotas.places import Shares
from banksman.quotas.rates import Rates, TooManyRequests
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

CONCURRENT = 64
"""Requests of one tenant that an intake handles at a time."""
WAITING = 1_000
"""Requests of one tenant that may wait or be handled at a time; further ones are refused."""


@dataclass
class _Queue:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT))
    size: int = 0


class Intake:
    """Admits requests before they are decoded: a rate and a queue for each tenant.

    A request over the rate limit of its tenant is refused before it is decoded. Refusals have the same limit;
    further requests are dropped without a reply, so that a flood costs little more than reading it.
    """

    def __init__(
        self,
        bus: Bus,
        rate: float | None,
        *,
        tenant_token: int = 1,
        refusal: Callable[[BanksmanError], bytes] = error_envelope,
    ) -> None:
        """Create the intake.

        Args:
            rate: Requests per second of each tenant; None for no limit.
            tenant_token: Position of the tenant among the tokens of a subject.
            refusal: Returns the reply to a request that is refused.
        """
        self._bus = bus
        self._tenant_token = tenant_token
        self._refusal = refusal
        self._rates = Rates(rate)
        self._refusals = Rates(rate)
        self._queues: dict[str, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, subject: str, reply: str, handle: Callable[[], Awaitable[None]]) -> None:
        """Handle a request in its own task, or refuse it; return at once."""
        tenant = subject.split(".")[self._tenant_token]
        if wait_s := self._rates.take(tenant):
            # Raises no exception, to keep refusals during a flood cheap.
            if reply and not self._refusals.take(tenant):
                await self._bus.publish(reply, self._refusal(TooManyRequests(wait_s)))
            return
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.size >= WAITING:
            if reply:
                await self._bus.publish(reply, self._refusal(Overloaded("too many requests wait")))
            return
        queue.size += 1
        task = asyncio.create_task(self._handle(tenant, queue, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, tenant: str, queue: _Queue, handle: Callable[[], Awaitable[None]]) -> None:
        try:
            async with queue.slots:
                await handle()
        finally:
            queue.size -= 1
            if queue.size == 0:
                del self._queues[tenant]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drop the requests that still wait; their clients repeat them."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class SharedConnectionBroker(ConnectedBroker):
    """FastStream's broker on the connection of a service."""

    def __init__(self, bus: Bus, intake: Intake | None) -> None:
        self.at_once: dict[str, OnMessage] = {}
        """By subject: the function called in place of FastStream's dispatch."""
        self._bus = bus
        self._intake = intake
        self._deliveries = _Deliveries(bus)
        super().__init__(
            bus.nc,
            bus.settings.urls,
            subscribe=self._subscribe,
            on_reconnect=bus.on_reconnect,
            middlewares=(partial(_Rules, bus=bus, deliveries=self._deliveries),),
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
        await self._deliveries.stop(max(0.0, ends_at - clock()))


class NoReply(Exception):
    """Raised by a handler that leaves a request without a reply. For None, FastStream sends an empty one."""


class _Rules(BaseMiddleware[Any, Any]):
    """Middleware of each handler: sends error envelopes for requests, settles messages of streams."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, bus: Bus, deliveries: _Deliveries) -> None:
        super().__init__(msg, context=context)
        self._bus = bus
        self._deliveries = deliveries

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> Any:
        if not handles_request(self.context):
            await self._deliveries.handle(call_next, msg)
            return None
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


async def respond(handled: Awaitable[BaseModel | bytes | None], subject: str) -> bytes | None:
    """Return the encoded reply of a handler, or the envelope of its error; raises `NoReply` as it does."""
    try:
        reply = await handled
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


@dataclass(slots=True)
class _Delivery:
    stream: str
    message: handling.WorkMessage
    reply: str
    """The subject for the ack of the newest delivery; the deliveries before it may have expired."""
    failures: handling.FailureCounts


class _Deliveries:
    """The messages of durable consumers; the handling of at most one of each subject continues."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._failures: defaultdict[tuple[str, str], handling.FailureCounts] = defaultdict(
            handling.FailureCounts
        )
        """By stream and consumer."""
        self._shares = Shares(PLACES)
        self._returns = ReturnTimes()
        self._running: dict[str, _Delivery] = {}
        """The messages whose rest runs, by subject."""
        self._tasks: set[BackgroundTask] = set()

    async def handle(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> None:
        """Handle and settle a message, or start its rest."""
        raw, message = msg.raw_message, handling.work_message(msg.raw_message)
        running = self._running.get(message.subject)
        if running is not None and running.message.stream_seq == message.stream_seq:
            # The outcome of the rest acks this newer delivery.
            running.reply = raw.reply
            return
        rest: handling.Continued | None = None

        async def handler(_message: handling.WorkMessage) -> handling.Outcome:
            nonlocal rest
            outcome = await call_next(msg)
            if isinstance(outcome, handling.Continued):
                rest = outcome
                return handling.Leave()
            return outcome

        stream, consumer = raw.metadata.stream, raw.metadata.consumer
        delivery = _Delivery(stream, message, raw.reply, self._failures[stream, consumer])
        await self._settle(delivery, handler)
        if rest is not None:
            await self._continue(delivery, rest)

    async def _continue(self, delivery: _Delivery, rest: handling.Continued) -> None:
        """Start the rest of a message, or return the message to the queue if it has no place."""
        message, tenant = delivery.message, tenant_of(delivery.message)
        if message.subject in self._running or not self._shares.allows(tenant):
            delay_s = self._returns.delay_s(tenant, asyncio.get_running_loop().time())
            await handling.settle(self._bus, message, delivery.reply, handling.Later(delay_s))
            return
        self._running[message.subject] = delivery
        self._shares.take(tenant)

        async def finish() -> None:
            try:
                await self._settle(delivery, lambda _message: rest.rest())
            except asyncio.CancelledError:
                # The rest has stopped, so another process need not wait until `ack_wait` expires.
                await handling.send_status(self._bus, delivery.reply, handling.NAK)
                raise

        def ended() -> None:
            del self._running[message.subject]
            self._shares.give_back(tenant)
            self._tasks.discard(task)

        task = self._bus.background.run("continued message", finish)
        self._tasks.add(task)
        task.when_ended(ended)

    async def _settle(self, delivery: _Delivery, handler: handling.Handler) -> None:
        """Run a handler and settle its message, which the server does not redeliver meanwhile."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await handling.send_status(self._bus, delivery.reply, handling.IN_PROGRESS)

        async with self._bus.background.running("heartbeat", beat):
            message = delivery.message
            outcome = await handling.handle(self._bus, delivery.stream, handler, message, delivery.failures)
            await handling.settle(self._bus, message, delivery.reply, outcome)

    async def stop(self, within_s: float) -> None:
        """Give the running ones `within_s` seconds to end, and cancel the others."""
        async with asyncio.TaskGroup() as group:
            for task in self._tasks:
                group.create_task(_stop(task, within_s))


async def _stop(task: BackgroundTask, within_s: float) -> None:
    await task.ended(within_s)
    await task.stop()
