"""Copies of whole streams, made while they are in use, and streams made from copies.

The server cuts a snapshot of a stream and sends it in chunks, each of which it wants acknowledged. Protocol:
https://docs.nats.io/reference/jetstream/api/stream/snapshot and `…/restore`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, TimedOut
from banksman.bus.jetstream import call
from banksman.bus.messages import Message
from banksman.bus.names import DESCRIPTION, api
from banksman.contracts.errors import BanksmanError, Fault

CHUNK_BYTES = 256 * 1024
SILENCE_S = 60.0
"""Seconds without a chunk, or without the acknowledgement of one, after which a copy is given up."""
INTEREST_S = 10.0
"""Seconds that it may take until the servers of a cluster know who takes a copy."""
_STATUS_END = "204"


class CopyBroken(Fault):
    """A stream could not be copied whole, or its copy not be brought back."""

    def __init__(self, stream: str, reason: str) -> None:
        self.stream = stream
        self.reason = reason
        super().__init__(f"stream {stream}: {reason}")


@dataclass(frozen=True, slots=True)
class StreamCopy:
    """A copy under way: what the server says of the stream, and its bytes."""

    config: dict[str, Any]
    state: dict[str, Any]
    chunks: AsyncIterator[bytes]


@asynccontextmanager
async def copied(bus: Bus, stream: str) -> AsyncGenerator[StreamCopy]:
    """A copy of a stream as it is now, its messages checked against their sums, without its consumers.

    Raises:
        ApiError: there is no such stream, or a message of it is damaged.
        CopyBroken: by `chunks`: the server gave up.
        Unavailable: no answer; also by `chunks`.
    """
    arrived: asyncio.Queue[Message | BanksmanError] = asyncio.Queue()
    subject = api("STREAM.SNAPSHOT", stream)
    with bus.replies.expect(subject, arrived.put_nowait, arrived.put_nowait, until_reconnect=True) as inbox:
        body = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES, "jsck": True}
        answer = await call(bus, subject, body, budget_s=SILENCE_S)
        yield StreamCopy(answer["config"], answer["state"], _chunks(bus, stream, arrived))


async def restore_stream(
    bus: Bus, config: dict[str, Any], state: dict[str, Any], chunks: Iterable[bytes]
) -> dict[str, Any]:
    """Make a stream from a copy; returns the state that it has then.

    Args:
        bus: The connection.
        config: What it shall be like.
        state: What the server said of the stream that was copied.
        chunks: The copy, in pieces of any size below a message's.

    Raises:
        ApiError: there is a stream of that name, or the server refuses its settings.
        CopyBroken: the server does not take the copy.
        Unavailable: no answer.
    """
    name = str(config["name"])
    began = await call(bus, api("STREAM.RESTORE", name), {"config": config, "state": state})
    target = cast(str, began["deliver_subject"])
    for chunk in chunks:
        _check(name, await _sent(bus, target, chunk))
    return cast(dict[str, Any], _check(name, await _sent(bus, target, b""))["state"])


async def delete_stream(bus: Bus, stream: str) -> None:
    """Remove a stream and all that it holds.

    Raises:
        ApiError: there is no such stream.
    """
    await call(bus, api("STREAM.DELETE", stream))


async def _sent(bus: Bus, target: str, chunk: bytes) -> Message:
    """Send a chunk; again while the server that wants it cannot be reached from ours.

    Another server of a cluster may take it, and that one's interest takes a moment to be known here.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + INTEREST_S
    while True:
        try:
            return await bus.replies.ask(target, chunk, timeout_s=SILENCE_S)
        except NoResponders:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(0.1)


async def _chunks(
    bus: Bus, stream: str, arrived: asyncio.Queue[Message | BanksmanError]
) -> AsyncIterator[bytes]:
    while (chunk := await _next(arrived, stream)).data:
        yield chunk.data
        if chunk.reply:
            await bus.publish(chunk.reply, b"")
    if chunk.status not in (None, _STATUS_END):
        raise CopyBroken(stream, chunk.headers.get(DESCRIPTION) or f"status {chunk.status}")


async def _next(arrived: asyncio.Queue[Message | BanksmanError], stream: str) -> Message:
    try:
        async with asyncio.timeout(SILENCE_S):
            found = await arrived.get()
    except TimeoutError as error:
        raise TimedOut(f"the copy of stream {stream}", SILENCE_S) from error
    if isinstance(found, BanksmanError):
        raise found
    return found


def _check(stream: str, answer: Message) -> dict[str, Any]:
    said = cast(dict[str, Any], json.loads(answer.data)) if answer.data.startswith(b"{") else {}
    if error := cast(dict[str, Any] | None, said.get("error")):
        raise CopyBroken(stream, f"{error.get('description', '')} ({error.get('err_code', 0)})")
    return said
