"""What becomes of a message after its handler: acknowledged, delivered later, left, or buried."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.errors import LogDamaged
from banksman.contracts.errors import BanksmanError, Fenced, Poison, Refused, Unavailable
from banksman.runtime.backoff import Backoff, retry

logger = logging.getLogger(__name__)

ACK_BUDGET_S = 10.0
"""Seconds that an acknowledgement is tried. After that the message is redelivered, and its handler finds
nothing to do."""
MOST_FAILURES = 10
"""Deliveries after which a message that its handler fails on is buried; some 30 s. What passes by itself
(no broker, storage full) is no failure; a message of a newer version is left to others for as long."""
BURY_AGAIN_S = 30.0
"""Seconds until poison is tried again when the stream of dead letters did not take it."""

DAMAGED_AGAIN_S = 10.0
"""Seconds until a message about a damaged log is looked at again. It is kept: once an operator has accepted
the loss or restored a backup it is handled as any other."""

NAK = b"-NAK"
IN_PROGRESS = b"+WPI"

_TRY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class WorkMessage:
    """A message of a work queue."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    stream_seq: int
    num_delivered: int
    """How often it was delivered, as far as the server knows: it forgets some when it crashes."""


@dataclass(frozen=True, slots=True)
class Done:
    """Acknowledge: it must not come again."""


@dataclass(frozen=True, slots=True)
class Later:
    """Deliver it again after `delay_s` seconds."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Leave:
    """Neither: another holds it."""


Outcome = Done | Later | Leave
Handler = Callable[[WorkMessage], Awaitable[Outcome]]
"""Handles a message; safe to run twice. May raise `Poison` of the message's own subject (to the dead
letters, then acknowledged), `Fenced` or `Refused` (like `Leave`); after anything else the message is
redelivered too, and buried when that has happened `MOST_FAILURES` times."""


async def handle(bus: Bus, stream: str, handler: Handler, message: WorkMessage) -> Outcome:
    """Run a handler and say what becomes of its message; raises nothing but cancellation."""
    try:
        return await handler(message)
    except (Fenced, Refused) as pause:
        logger.info("%s: left for later: %s", message.subject, pause)
    except LogDamaged as damaged:
        logger.warning("%s: kept: %s", message.subject, damaged)
        return Later(DAMAGED_AGAIN_S)
    except Exception as error:
        if isinstance(error, Poison) and error.subject == message.subject:
            return await _bury(bus, stream, message, error.reason)
        logger.exception("%s: handling message %d failed", message.subject, message.stream_seq)
        if message.num_delivered >= MOST_FAILURES:
            why = f"not handled in {message.num_delivered} deliveries: {type(error).__name__}: {error}"
            return await _bury(bus, stream, message, why)
    return Leave()


async def settle(bus: Bus, message: WorkMessage, reply: str, outcome: Outcome) -> None:
    """Tell the server the outcome."""
    match outcome:
        case Done():
            await _ack(bus, message, reply)
        case Later(delay_s=delay_s) if delay_s > 0:
            delay = json.dumps({"delay": int(delay_s * 1_000_000_000)})
            await say(bus, reply, NAK + b" " + delay.encode())
        case Later():
            await say(bus, reply, NAK)
        case Leave():
            pass
        case _:
            assert_never(outcome)


async def say(bus: Bus, reply: str, word: bytes) -> None:
    """Send a word that may be lost: that costs a redelivery, nothing more."""
    with contextlib.suppress(Unavailable):
        await bus.publish(reply, word)


async def _bury(bus: Bus, stream: str, message: WorkMessage, reason: str) -> Outcome:
    logger.error("%s: message %d of %s is poison: %s", message.subject, message.stream_seq, stream, reason)
    try:
        await dead.bury(
            bus,
            subject=message.subject,
            stream=stream,
            stream_seq=message.stream_seq,
            reason=reason,
            payload=message.data,
            headers=message.headers,
        )
    except BanksmanError as error:
        logger.error("%s: not taken as a dead letter: %s", message.subject, error)
        return Later(BURY_AGAIN_S)
    return Done()


async def _ack(bus: Bus, message: WorkMessage, reply: str) -> None:
    """Acknowledge, and wait until the server confirms it."""

    async def attempt() -> None:
        await bus.wait_connected()
        await bus.replies.ask(reply, b"", timeout_s=_TRY_S, until_reconnect=True)

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
