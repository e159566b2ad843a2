"""Archived commits: messages of old logs, unchanged but compressed, in parts in an object store.

A log whose commits were archived begins with a commit that names the parts (`Commit.archive`).
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterable, Iterator

from banksman.bus.connection import Bus
from banksman.bus.messages import StreamMessage
from banksman.bus.names import ARCHIVE
from banksman.bus.storage.objects import ObjectBroken, Objects, owned_name
from banksman.contracts import subjects
from banksman.contracts.ids import new_id

PART_BYTES = 4 * 1024 * 1024
"""Bytes of commits after which another part begins."""
_OWNER = "log"


class ArchivedCommits:
    def __init__(self, bus: Bus) -> None:
        self._objects = Objects(bus, ARCHIVE)

    async def store(
        self, tenant: str, conversation_id: str, messages: Iterable[StreamMessage]
    ) -> tuple[str, ...]:
        """Store messages of a log, each part read back and compared; return the ids of the parts."""
        parts: list[str] = []
        for piece in _pieces(messages):
            part = new_id("p")
            packed = await asyncio.to_thread(_packed, piece)
            await self._objects.put(owned_name(_OWNER, tenant, conversation_id, part), packed)
            if await self.read(tenant, conversation_id, (part,)) != piece:
                raise ObjectBroken(ARCHIVE, part)
            parts.append(part)
        return tuple(parts)

    async def read(self, tenant: str, conversation_id: str, parts: Iterable[str]) -> list[StreamMessage]:
        """Return the messages of parts; raise `NotFound` or `ObjectBroken` if one is lost or damaged."""
        subject = subjects.conversation(tenant, conversation_id)
        found: list[StreamMessage] = []
        for part in parts:
            packed = await self._objects.get(owned_name(_OWNER, tenant, conversation_id, part))
            found += await asyncio.to_thread(_unpacked, subject, packed)
        return found

    async def remove(self, tenant: str, conversation_id: str, *parts: str) -> None:
        """Remove parts of a log; without `parts` all, also those of an interrupted archiving."""
        for path in [(part,) for part in parts] or [()]:
            await self._objects.remove(owned_name(_OWNER, tenant, conversation_id, *path))


def _pieces(messages: Iterable[StreamMessage]) -> Iterator[list[StreamMessage]]:
    piece: list[StreamMessage] = []
    size = 0
    for message in messages:
        piece.append(StreamMessage(message.subject, message.data, message.headers, message.stream_seq))
        size += len(message.data)
        if size >= PART_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _packed(messages: list[StreamMessage]) -> bytes:
    lines = ([one.stream_seq, dict(one.headers), one.data.decode()] for one in messages)
    return zlib.compress("\n".join(map(json.dumps, lines)).encode())


def _unpacked(subject: str, packed: bytes) -> list[StreamMessage]:
    lines = map(json.loads, zlib.decompress(packed).splitlines())
    return [StreamMessage(subject, data.encode(), headers, stream_seq) for stream_seq, headers, data in lines]
