"""FastStream's broker on the connection of a service, and what happens around each handler.

A request whose handler raises gets an error envelope.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.contracts.errors import BanksmanError, ErrorCode, Overloaded, Unavailable
from banksman.library_internals.faststream_nats import ConnectedBroker, OnMessage
from banksman.library_internals.nats_client import subscribe
from banksman.quotas.rates import Rates, TooManyRequests

logger = logging.getLogger(__name__)

HANDLERS_END_S = 4.0
"""Seconds that all running handlers together get at a stop; then their requests are refused."""
STOPPING = "the service stops; nothing was done"
INTERRUPTED = "the service stopped before the request ended; whether it took effect is not known"
INTAKE_MESSAGES = 16_384
INTAKE_BYTES = 16 * 1024 * 1024
"""Maximum number and bytes of requests of one subject that wait for an intake; further ones are dropped."""

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
        task = asyncio.create_task(self._handle(tenant, queue, reply, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(
        self, tenant: str, queue: _Queue, reply: str, handle: Callable[[], Awaitable[None]]
    ) -> None:
        begun = False
        try:
            async with queue.slots:
                begun = True
                await handle()
        except asyncio.CancelledError:
            if reply and not begun:
                await self._bus.publish(reply, self._refusal(Unavailable(STOPPING)))
            raise
        finally:
            queue.size -= 1
            if queue.size == 0:
                del self._queues[tenant]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse the requests that still wait; their clients repeat them."""
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
        super().__init__(
            bus.nc,
            bus.settings.urls,
            subscribe=self._subscribe,
            middlewares=(partial(_Replies, bus=bus),),
            stop_s=HANDLERS_END_S,
        )

    async def _subscribe(self, subject: str, queue: str, callback: OnMessage) -> Subscription:
        async def admitted(msg: Msg) -> None:
            # FastStream unsubscribes when its running handlers have ended; until then it drops requests.
            if not self.is_stopping:
                await dispatched(msg)
            elif msg.reply:
                await self._bus.publish(msg.reply, error_envelope(Unavailable(STOPPING)))

        dispatched, intake = callback, self._intake
        callback = self.at_once.get(subject, admitted)
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


class NoReply(Exception):
    """Raised by a handler that leaves a request without a reply. For None, FastStream sends an empty one."""


class _Replies(BaseMiddleware[Any, Any]):
    """Middleware of each handler: sends error envelopes."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, bus: Bus) -> None:
        super().__init__(msg, context=context)
        self._bus = bus

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Msg]) -> Any:
        reconnects = self._bus.stats.reconnects
        try:
            response = await respond(call_next(msg), msg.raw_message.subject)
        except NoReply:
            msg.reply_to = ""
            return None
        except asyncio.CancelledError:
            if msg.reply_to and self._bus.stats.reconnects == reconnects:
                await self._bus.publish(msg.reply_to, error_envelope(Unavailable(INTERRUPTED)))
            raise
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
