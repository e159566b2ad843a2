"""A cache of a bucket's values, which writes of any process invalidate."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from pydantic import BaseModel

from banksman.bus.connection import BusSubscription
from banksman.bus.messages import Message
from banksman.bus.names import kv_subject
from banksman.bus.storage.kv import Bucket, Entry
from banksman.contracts import subjects

T = TypeVar("T", bound=BaseModel)

VALID_S: Final = 20.0
"""Maximum seconds for which a cached value is used, in case the message about a write is lost."""
MAX_VALUES: Final = 256
MAX_CHARS: Final = 64 * 1024
"""Characters of JSON above which a value is not cached; with `MAX_VALUES`, it bounds the memory."""


class RecentValues(Generic[T]):
    """Reads values: from the leader at first and after each write, otherwise from memory.

    As a context manager it watches writes, and caches values while it does. A write of another process takes
    a moment to arrive, so a decision that must not be wrong reads the bucket.
    """

    def __init__(self, bucket: Bucket[T]) -> None:
        self._bucket = bucket
        self._entries: OrderedDict[str, tuple[Entry[T], float]] = OrderedDict()
        """By key: the value, and the time of its expiry by the clock of the event loop."""
        self._writes = 0
        self._subscription: BusSubscription | None = None
        self._removers: tuple[Callable[[], None], ...] = ()

    async def __aenter__(self) -> Self:
        bus = self._bucket.bus
        written = subjects.stored(kv_subject(self._bucket.name, ">"))
        self._removers = (
            bus.on_reconnect(self._forget_all),
            bus.on_slow_consumer(lambda _subject: self._forget_all()),
        )
        self._subscription = await bus.subscribe(written, self._written)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for remove in self._removers:
            remove()
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    async def get(self, key: str) -> Entry[T] | None:
        """Return a value, which may be cached for a moment; raise `Poison` if it cannot be decoded."""
        now, writes = asyncio.get_running_loop().time(), self._writes
        known = self._entries.get(key)
        if known is not None and now < known[1]:
            return known[0]
        entry = await self._bucket.get(key)
        # A write during the read may be newer than the value that was read.
        unchanged = self._subscription is not None and writes == self._writes
        if entry is not None and unchanged and len(entry.value.model_dump_json()) <= MAX_CHARS:
            self._entries[key] = entry, now + VALID_S
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_VALUES:
                self._entries.popitem(last=False)
        return entry

    def forget(self, key: str) -> None:
        """Drop a value that this process wrote: the message about it may arrive after the next read."""
        self._writes += 1
        self._entries.pop(key, None)

    async def _written(self, message: Message) -> None:
        self.forget(self._bucket.key_of(message.subject.removeprefix(subjects.stored(""))))

    def _forget_all(self) -> None:
        self._writes += 1
        self._entries.clear()
