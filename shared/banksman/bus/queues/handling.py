"""How a message of a work queue is decoded, handled and settled: acked, delivered later, or dead-lettered."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from nats.aio.msg import Msg
from pydantic import TypeAdapter, ValidationError

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged, NewerVersion
from banksman.bus.messages import StreamMessage
from banksman.contracts.errors import BanksmanError, Fenced, Poison, Refused, Unavailable
from banksman.contracts.wire import WIRE_VERSION
from banksman.runtime.backoff import Backoff, retry

logger = logging.getLogger(__name__)

ACK_BUDGET_S = 10.0
"""Seconds for which an ack is repeated. After that the message is redelivered, and its handler, which is safe
to repeat, has no further effect."""
MOST_FAILURES = 10
"""Failed deliveries to one process, about 3 s apart, after which a message is dead-lettered. Temporary faults
(no broker, storage full) do not count. A message of a newer version is left to other processes for the same
number of deliveries."""
MAX_COUNTED = 10_000
"""Maximum number of messages of a consumer whose failures a process counts: as many as the server delivers
without an ack, so that no failing message is forgotten between two of its deliveries."""
DEAD_LETTER_RETRY_S = 30.0
"""Seconds until a poison message is redelivered if it could not be dead-lettered."""

DAMAGED_RETRY_S = 10.0
"""Seconds until a message of a damaged log is redelivered. Once an operator has accepted the loss or restored
a backup, it is handled like any other message."""

NAK = b"-NAK"
IN_PROGRESS = b"+WPI"

_TRY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

T = TypeVar("T")
_VERSION = "v"


async def _at_once() -> None:
    return


@dataclass(frozen=True, slots=True)
class WorkMessage(StreamMessage):
    num_delivered: int
    """The server's count of deliveries; a crash of the server loses the latest ones. It includes those that
    were refused, delayed or left, so it is no count of failures."""
    without_slot: Callable[[], AbstractAsyncContextManager[None]] = field(default=nullcontext, compare=False)
    """Returns a context in which the handler has no slot, for a handler that only waits."""
    in_turn: Callable[[], Awaitable[None]] = field(default=_at_once, compare=False)
    """Called before each piece of work: lets a message that waits have the slot first, except for the first
    piece, and waits for the next slot."""


def work_message(raw: Msg) -> WorkMessage:
    """Return the stored message that a durable consumer delivered; raise `NatsError` for another message."""
    metadata = raw.metadata
    return WorkMessage(
        raw.subject, raw.data, raw.headers or {}, metadata.sequence.stream, metadata.num_delivered
    )


@dataclass(frozen=True, slots=True)
class Done:
    """Ack the message: it is not delivered again."""


@dataclass(frozen=True, slots=True)
class Later:
    """Redeliver the message after `delay_s` seconds."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """Send nothing: the message is redelivered after `ack_wait`, or another process holds it."""


Outcome = Done | Later | Leave


Handler = Callable[[WorkMessage], Awaitable[Outcome]]
"""Handles a message; safe to run twice. It may raise `Poison` of the message's own subject, which
dead-letters and acks the message, and `Fenced` or `Refused`, which count as `Leave`. After any other error
the message is redelivered, and dead-lettered after `MOST_FAILURES` failures."""


class FailureCounts:
    """How often this process failed to handle each message of a consumer."""

    def __init__(self) -> None:
        self._counts: OrderedDict[int, int] = OrderedDict()
        """By stream sequence; the latest failure is last."""

    def add(self, stream_seq: int) -> int:
        number = self._counts.pop(stream_seq, 0) + 1
        self._counts[stream_seq] = number
        if len(self._counts) > MAX_COUNTED:
            self._counts.popitem(last=False)
        return number

    def forget(self, stream_seq: int) -> None:
        """Forget a message, because it is not delivered again."""
        self._counts.pop(stream_seq, None)


async def handle(
    bus: Bus, stream: str, handler: Handler, message: WorkMessage, failures: FailureCounts
) -> Outcome:
    """Run a handler and return the outcome of its message; raises only on cancellation."""
    outcome = await _outcome(bus, stream, handler, message, failures)
    if isinstance(outcome, Done):
        failures.forget(message.stream_seq)
    return outcome


async def _outcome(
    bus: Bus, stream: str, handler: Handler, message: WorkMessage, failures: FailureCounts
) -> Outcome:
    try:
        return await handler(message)
    except (Fenced, Refused) as pause:
        logger.info("%s: it will be delivered again: %s", message.subject, pause)
    except LogDamaged as damaged:
        # The message is redelivered every few seconds until an operator acts, and `/readyz` names the log.
        level = logging.WARNING if message.num_delivered == 1 else logging.DEBUG
        logger.log(level, "%s: kept: %s", message.subject, damaged)
        return Later(DAMAGED_RETRY_S)
    except Exception as error:
        if isinstance(error, Poison) and error.subject == message.subject:
            return await _dead_letter(bus, stream, message, error.reason)
        logger.exception("%s: handling message %d failed", message.subject, message.stream_seq)
        tries = failures.add(message.stream_seq)
        if tries >= MOST_FAILURES:
            why = f"not handled in {tries} deliveries: {type(error).__name__}: {error}"
            return await _dead_letter(bus, stream, message, why)
    return Leave()


async def settle(bus: Bus, message: WorkMessage, reply: str, outcome: Outcome) -> None:
    match outcome:
        case Done():
            await _ack(bus, message, reply)
        case Later(delay_s=delay_s) if delay_s > 0:
            delay = json.dumps({"delay": int(delay_s * 1_000_000_000)})
            await send_status(bus, reply, NAK + b" " + delay.encode())
        case Later():
            await send_status(bus, reply, NAK)
        case Leave():
            pass
        case _:
            assert_never(outcome)


async def send_status(bus: Bus, reply: str, status: bytes) -> None:
    """Send an ack status that may be lost; a loss costs one redelivery."""
    with contextlib.suppress(Unavailable):
        await bus.publish(reply, status)


async def _dead_letter(bus: Bus, stream: str, message: WorkMessage, reason: str) -> Outcome:
    logger.error("%s: message %d of %s is poison: %s", message.subject, message.stream_seq, stream, reason)
    try:
        await dead.dead_letter_stored(bus, stream, message, reason)
    except BanksmanError as error:
        logger.error("%s: not dead-lettered yet: %s", message.subject, error)
        return Later(DEAD_LETTER_RETRY_S)
    return Done()


async def _ack(bus: Bus, message: WorkMessage, reply: str) -> None:
    """Acknowledge a message, and wait until the server confirms it.

    A plain ack that is sent while the server is down is lost without an error.
    """

    async def attempt() -> None:
        await bus.wait_connected()
        await bus.replies.request(reply, b"", timeout_s=_TRY_S, until_reconnect=True)

    try:
        await retry(
            attempt,
            again=bus.may_recover,
            backoff=Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
            budget_s=ACK_BUDGET_S,
            failure=f"message {message.stream_seq}: no acknowledgement",
        )
    except BanksmanError as error:
        logger.warning("%s: %s", message.subject, error)


def decoded(adapter: TypeAdapter[T], message: WorkMessage) -> T:
    """Decode a body; raise `Poison` if it is invalid, and `NewerVersion` if only later processes know it."""
    try:
        return adapter.validate_json(message.data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        version: Any = first.get("input")
        if first["loc"][-1:] == (_VERSION,) and isinstance(version, int) and version > WIRE_VERSION:
            raise NewerVersion(message.subject, version) from error
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Poison(message.subject, f"{where}: {first['msg']}") from error


def check_subject(message: WorkMessage, expected: str) -> None:
    """Raise `Poison` unless the body implies this subject: permissions restrict only subjects."""
    if message.subject != expected:
        raise Poison(message.subject, f"the body belongs to subject {expected}")
