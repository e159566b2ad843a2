"""Batched direct get: one request returns many stored messages, from any replica.

A replica that was disconnected or frozen may lag behind the leader. Reads that a decision depends on use
`current` or `jetstream.last_message`.
Protocol: ADR-31, https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.errors import NO_RESPONSE, NoResponders, TimedOut
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
"""Messages per request."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes after which the server ends a batch early."""
_SILENCE_S = 2.0
"""Seconds without a message after which a batch counts as interrupted and the rest is requested again."""


@dataclass(frozen=True, slots=True)
class _Batch:
    messages: list[StoredMessage]
    complete: bool
    """False when it was interrupted: the rest must be requested again."""
    pending: int
    """Number of matching messages after these."""


async def read(
    bus: Bus,
    stream: str,
    subject: str,
    *,
    after: int = 0,
    budget_s: float = BUDGET_S,
    current: bool = False,
) -> AsyncIterator[StoredMessage]:
    """Yield every stored message on a subject after a stream sequence, in order.

    Args:
        after: Stream sequence after which to start; 0 for all.
        budget_s: Seconds to wait for the next message.
        current: True also requests from the leader, at the end, the messages that the replica does not have
            yet. With False the newest messages may be missing, and removed messages may be returned.

    Raises:
        Unavailable: No message arrived for `budget_s` seconds.
    """
    loop = asyncio.get_running_loop()
    budget_s = bus.budget(budget_s)
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
            continue
        try:
            async with asyncio.timeout_at(deadline):
                await bus.wait_connected()
                await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise Unavailable(
                f"{stream}: {subject} could not be read within {budget_s:g} s", public=NO_RESPONSE
            ) from error
    while current and (message := await next_message(bus, stream, subject, after=after, budget_s=budget_s)):
        yield message
        after = message.stream_seq


async def count(bus: Bus, stream: str, subject: str) -> int:
    """Return how many messages a replica has on a subject. Transfers only one of them."""
    batch = await _batch(bus, stream, subject, 0, messages=1)
    if not batch.complete:
        raise Unavailable(f"{stream}: {subject} could not be counted", public=NO_RESPONSE)
    return len(batch.messages) + batch.pending


async def _batch(
    bus: Bus, stream: str, subject: str, after: int, *, messages: int = BATCH_MESSAGES
) -> _Batch:
    replies: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    body = {"seq": after + 1, "next_by_subj": subject, "batch": messages, "max_bytes": BATCH_BYTES}
    target = api("DIRECT.GET", stream)
    received: list[StoredMessage] = []
    with bus.replies.expect(target, replies.put_nowait, replies.put_nowait, until_reconnect=True) as inbox:
        try:
            await bus.replies.send(target, json.dumps(body).encode(), inbox)
            while True:
                item = await _next(replies, target)
                if isinstance(item, StoredMessage):
                    received.append(item)
                else:
                    return _Batch(received, complete=True, pending=item)
        except Unavailable:
            if bus.closed.is_set():
                raise
            return _Batch(received, complete=False, pending=1)


async def _next(replies: asyncio.Queue[Message | BanksmanError], target: str) -> StoredMessage | int:
    """Return the next message of a batch, or at its end the number of matching messages after it."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            reply = await replies.get()
    except TimeoutError as error:
        raise TimedOut(target, _SILENCE_S) from error
    if isinstance(reply, BanksmanError):
        raise reply
    # The server adds the subject and the sequence only to stored messages. The status alone proves nothing:
    # a publisher chooses the headers of its message, and may add a status.
    if SUBJECT in reply.headers and SEQUENCE in reply.headers:
        return _stored(reply)
    match reply.status:
        case None:
            raise ApiError(target, 0, 0, "a reply is neither a stored message nor a status")
        case status if status == STATUS_END_OF_BATCH:
            return int(reply.headers.get(NUM_PENDING, "0"))
        case status if status == STATUS_NOT_FOUND:
            return 0
        case status if status == STATUS_NO_RESPONDERS:
            raise NoResponders(target)
        case status:
            raise ApiError(target, int(status), 0, reply.headers.get(DESCRIPTION, ""))


def _stored(message: Message) -> StoredMessage:
    headers: Mapping[str, Any] = message.headers
    return StoredMessage(
        subject=headers[SUBJECT],
        stream_seq=int(headers[SEQUENCE]),
        data=message.data,
        headers=headers,
        time=headers[TIME_STAMP],
    )
