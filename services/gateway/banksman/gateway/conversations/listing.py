"""Pages of stored messages, newest first: the list of conversations, and the search in their logs.

The stream of a bucket contains the last value of each key in the order of writing. Streams are therefore read
backwards from their end, and the cursor of a page is a stream sequence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.storage.kv import Entry, is_marker
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput, Poison
from banksman.quotas.stored import SharedBucket

FIRST_WINDOW = 1_000
"""Stream sequences that the first read covers. Later reads cover more while they find few messages."""
FEW, MANY = 500, 5_000
MAX_DIGITS = len(str(2**63))


def position(cursor: str | None, source: str) -> int | None:
    """Return the position of a cursor; None for the start, `BadInput` if `source` did not return it."""
    if not cursor:
        return None
    if not cursor.isdecimal() or len(cursor) > MAX_DIGITS:
        raise BadInput("cursor", cursor, f"a cursor that this {source} returned")
    return int(cursor)


async def newest_first(
    bus: Bus, stream: str, subject: str, before: int | None
) -> AsyncIterator[StoredMessage]:
    """Yield the messages before a stream sequence, None for the newest. Each read stays small."""
    if before is None:
        last = await jetstream.last_message(bus, stream, subject)
        before = last.stream_seq + 1 if last else 0
    window = FIRST_WINDOW
    while before > 1:
        start = max(0, before - 1 - window)
        messages: list[StoredMessage] = []
        async for message in jetstream.read(bus, stream, subject, after=start):
            if message.stream_seq >= before:
                break
            messages.append(message)
        for message in reversed(messages):
            yield message
        before = start + 1
        window = window * 4 if len(messages) < FEW else window // 2 if len(messages) > MANY else window


async def newest(
    bucket: SharedBucket[ConversationRecord],
    tenant: str,
    before: int | None,
    limit: int,
    matches: Callable[[ConversationRecord], bool],
) -> tuple[list[Entry[ConversationRecord]], str | None]:
    """Return at most `limit` entries that match, newest first, and the cursor of the next ones."""
    found: list[Entry[ConversationRecord]] = []
    async for message in newest_first(bucket.bus, bucket.stream, bucket.subject(tenant) + ".*", before):
        if is_marker(message):
            continue
        try:
            entry = bucket.entry(message)
        except Poison as poison:
            await bucket.unreadable.report(message, poison.reason)
            continue
        if not matches(entry.value):
            continue
        if len(found) == limit:
            return found, str(found[-1].revision)
        found.append(entry)
    return found, None
