"""Batched direct get: many stored messages for one request, from any replica.

A replica may lag behind the leader, by as long as it was cut off or frozen: what decides something is read
with `current`, or by `jetstream.last_message`.
Protocol: ADR-31, https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, TimedOut
from banksman.bus.jetstream import BUDGET_S, ApiError, next_message
from banksman.bus.messages import Message, StoredMessage
from banksman.bus.names import (
    DESCRIPTION,
    NUM_PENDING,
    SEQUENCE,
    STATUS_END_OF_BATCH,
    STATUS_NO_RESPONDERS,
    STATUS_NOT_FOUND,
    SUBJECT,
    TIME_STAMP,
    api,
)
from banksman.contracts.errors import BanksmanError, Unavailable

BATCH_MESSAGES = 256
"""Messages asked for at once."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes after which the server ends a batch early."""
_SILENCE_S = 2.0
"""Seconds without a message after which a batch counts as broken off and the rest is asked for again."""


@dataclass(frozen=True, slots=True)
class _Batch:
    messages: list[StoredMessage]
    complete: bool
    """False when it broke off: the rest must be asked for again."""
    pending: int
    """Messages that match and come after these."""


async def read(
    bus: Bus,
    stream: str,
    subject: str,
    *,
    after: int = 0,
    budget_s: float = BUDGET_S,
    current: bool = False,
) -> AsyncIterator[StoredMessage]:
    """Every stored message on `subject` (which may hold wildcards) after a stream sequence, in order.

    Args:
        bus: The connection.
        stream: Where they are stored.
        subject: On which.
        after: Stream sequence of the last message that is not wanted.
        budget_s: Seconds to wait for the next message.
        current: True asks the leader in the end for what the replicas do not have yet. Without it the newest
            may be missing, and what was removed since may be there.

    Raises:
        Unavailable: no message for `budget_s`.
        ApiError: the server refused.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + budget_s
    while True:
        batch = await _batch(bus, stream, subject, after)
        for message in batch.messages:
            yield message
            after = message.stream_seq
        if batch.complete and not batch.pending:
            break
        if batch.messages:
            deadline = loop.time() + budget_s
        elif loop.time() > deadline:
            raise Unavailable(f"{stream}: {subject} could not be read within {budget_s:g} s")
        else:
            await bus.wait_connected()
            await asyncio.sleep(0.1)
    while current and (message := await next_message(bus, stream, subject, after=after, budget_s=budget_s)):
        yield message
        after = message.stream_seq


async def _batch(bus: Bus, stream: str, subject: str, after: int) -> _Batch:
    answers: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    body = {"seq": after + 1, "next_by_subj": subject, "batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES}
    target = api("DIRECT.GET", stream)
    messages: list[StoredMessage] = []
    with bus.replies.expect(target, answers.put_nowait, answers.put_nowait, until_reconnect=True) as inbox:
        try:
            await bus.replies.send(target, json.dumps(body).encode(), inbox)
            while True:
                answer = await _next(answers, target)
                if isinstance(answer, StoredMessage):
                    messages.append(answer)
                else:
                    return _Batch(messages, complete=True, pending=answer)
        except Unavailable:
            if bus.closed.is_set():
                raise
            return _Batch(messages, complete=False, pending=1)


async def _next(answers: asyncio.Queue[Message | BanksmanError], target: str) -> StoredMessage | int:
    """The next message of a batch, or at its end the number of those that come after it."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            answer = await answers.get()
    except TimeoutError as error:
        raise TimedOut(target, _SILENCE_S) from error
    if isinstance(answer, BanksmanError):
        raise answer
    match answer.status:
        case None:
            return _stored(answer)
        case status if status == STATUS_END_OF_BATCH:
            return int(answer.headers.get(NUM_PENDING, "0"))
        case status if status == STATUS_NOT_FOUND:
            return 0
        case status if status == STATUS_NO_RESPONDERS:
            raise NoResponders(target)
        case status:
            raise ApiError(target, int(status), 0, answer.headers.get(DESCRIPTION, ""))


def _stored(message: Message) -> StoredMessage:
    headers: Mapping[str, Any] = message.headers
    return StoredMessage(
        subject=headers[SUBJECT],
        stream_seq=int(headers[SEQUENCE]),
        data=message.data,
        headers=headers,
        time=headers[TIME_STAMP],
    )
