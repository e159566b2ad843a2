"""The list of conversations, newest first.

The stream of a bucket contains the last value of each key in the order of writing. The list is therefore read
backwards from the end of the stream, and the cursor of a page is a stream sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from banksman.bus import direct, jetstream
from banksman.bus.connection import Bus
from banksman.bus.storage.kv import Entry, is_marker
from banksman.contracts.assistants import ConversationRecord
from banksman.contracts.errors import BadInput, Poison
from banksman.quotas.stored import SharedBucket

FIRST_WINDOW = 1_000
"""Stream sequences that the first read of a page covers; each further read covers four times as many."""


def position(cursor: str | None) -> int | None:
    """Return the position of a cursor; None for the start, `BadInput` if `newest` did not return it."""
    if cursor is None or cursor == "":
        return None
    if not cursor.isdecimal():
        raise BadInput("cursor", cursor, "a cursor that this list returned")
    return int(cursor)


async def newest(
    bus: Bus,
    bucket: SharedBucket[ConversationRecord],
    tenant: str,
    before: int | None,
    limit: int,
    matches: Callable[[ConversationRecord], bool],
) -> tuple[list[Entry[ConversationRecord]], str | None]:
    """Return at most `limit` entries that match, newest first, and the cursor of the next ones.

    Args:
        before: The stream sequence before which the entries were stored; None for the newest.
    """
    subject = bucket.subject(tenant) + ".*"
    if before is None:
        last = await jetstream.last_message(bus, bucket.stream, subject)
        before = last.stream_seq + 1 if last else 0
    found: list[Entry[ConversationRecord]] = []
    window = FIRST_WINDOW
    while before > 1 and len(found) <= limit:
        start = max(0, before - 1 - window)
        found += reversed(await _between(bus, bucket, subject, start, before, matches))
        before, window = start + 1, window * 4
    more = len(found) > limit
    return found[:limit], str(found[limit - 1].revision) if more and limit else None


async def _between(
    bus: Bus,
    bucket: SharedBucket[ConversationRecord],
    subject: str,
    after: int,
    before: int,
    matches: Callable[[ConversationRecord], bool],
) -> list[Entry[ConversationRecord]]:
    found: list[Entry[ConversationRecord]] = []
    async for message in direct.read(bus, bucket.stream, subject, after=after):
        if message.stream_seq >= before:
            break
        if is_marker(message):
            continue
        try:
            entry = bucket.entry(message)
        except Poison as poison:
            await bucket.unreadable.report(message, poison.reason)
            continue
        if matches(entry.value):
            found.append(entry)
    return found
