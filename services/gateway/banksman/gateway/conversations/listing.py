"""Pages of stored messages, newest first: the list of conversations, and the search in their logs.

The stream of a bucket contains the last value of each key in the order of writing. Streams are therefore read
backwards from their end, and the cursor of a page is a stream sequence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.storage.kv import Entry, is_marker
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput, Poison
from banksman.quotas.stored import SharedBucket

FIRST_WINDOW = 1_000
"""Stream sequences that the first read of a search covers. Reads cover more while they find few messages."""
PER_ENTRY = 4
"""Stream sequences that the first read of a list covers per entry of the page."""
FEW, MANY = 500, 5_000
WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the messages of one read; one that finds more is repeated for fewer sequences."""
PAGE_S, PAGE_BYTES = 1.0, 64 * 1024 * 1024
"""Seconds and bytes after which a page ends, full or not, with the cursor to continue from."""
PAUSE_BYTES = 128 * 1024
"""Bytes after which other requests get their turn."""
MAX_DIGITS = len(str(2**63))


def position(cursor: str | None, source: str) -> int | None:
    """Return the position of a cursor; None for the start, `BadInput` if `source` did not return it."""
    if not cursor:
        return None
    if not cursor.isdecimal() or len(cursor) > MAX_DIGITS:
        raise BadInput("cursor", cursor, f"a cursor that this {source} returned")
    return int(cursor)


class Budget:
    """What one page may read."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PAGE_S
        self._bytes = self._pause_at = 0

    @property
    def spent(self) -> bool:
        return self._bytes > PAGE_BYTES or time.monotonic() > self._until

    async def count(self, message: StoredMessage) -> None:
        self._bytes += len(message.data)
        if self._bytes > self._pause_at:
            self._pause_at = self._bytes + PAUSE_BYTES
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Window:
    messages: tuple[StoredMessage, ...]
    """The messages after a stream sequence, newest first."""
    after: int


async def windows(
    bus: Bus, stream: str, subject: str, before: int | None, width: int = FIRST_WINDOW
) -> AsyncIterator[Window]:
    """Yield the messages before a stream sequence, None for the newest, in windows of bounded bytes.

    The first window covers `width` sequences.
    """
    if before is None:
        last = await jetstream.last_message(bus, stream, subject)
        before = last.stream_seq + 1 if last else 0
    while before > 1:
        after = max(0, before - 1 - width)
        messages, size = await _between(bus, stream, subject, after, before)
        if size > WINDOW_BYTES and width > 1:
            width = max(1, width // 8)
            continue
        yield Window(tuple(reversed(messages)), after)
        before = after + 1
        few = len(messages) < FEW and size < WINDOW_BYTES // 8
        width = width * 4 if few else max(1, width // 2) if len(messages) > MANY else width


async def _between(
    bus: Bus, stream: str, subject: str, after: int, before: int
) -> tuple[list[StoredMessage], int]:
    """Return messages between two sequences, and their bytes; the first ones if they have too many."""
    messages: list[StoredMessage] = []
    size = 0
    async for message in jetstream.read(bus, stream, subject, after=after):
        if message.stream_seq >= before or size > WINDOW_BYTES:
            break
        messages.append(message)
        size += len(message.data)
    return messages, size


async def newest(
    bucket: SharedBucket[ConversationRecord],
    tenant: str,
    before: int | None,
    limit: int,
    matches: Callable[[ConversationRecord], bool],
) -> tuple[list[Entry[ConversationRecord]], str | None]:
    """Return at most `limit` entries that match, newest first, and the cursor of the next ones."""
    found: list[Entry[ConversationRecord]] = []
    budget = Budget()
    subject, width = bucket.subject(tenant) + ".*", PER_ENTRY * (limit + 1)
    async for window in windows(bucket.bus, bucket.stream, subject, before, width):
        for message in window.messages:
            await budget.count(message)
            entry = await _readable(bucket, message)
            if entry is None or not matches(entry.value):
                continue
            if len(found) == limit:
                return found, str(found[-1].revision)
            found.append(entry)
        if budget.spent and window.after:
            return found, str(window.after + 1)
    return found, None


async def _readable(
    bucket: SharedBucket[ConversationRecord], message: StoredMessage
) -> Entry[ConversationRecord] | None:
    if is_marker(message):
        return None
    try:
        return bucket.entry(message)
    except Poison as poison:
        await bucket.unreadable.report(message, poison.reason)
        return None
