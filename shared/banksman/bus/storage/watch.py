"""A view of a bucket in memory, which follows every change.

A view needs no consumer in the server: the bucket's stream republishes each stored change. A republished
message may be lost, so the view is compared with the stream after a reconnect, after dropped messages, and at
regular intervals.

The view itself ends an entry that is not written again in time. Markers of the server would do so too, but a
stream with such markers lets each of its publishers remove all entries (`Nats-Rollup: all`), or keep one for
ever (`Nats-TTL: never`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Generic, Self, TypeVar

from pydantic import BaseModel

from banksman.bus import jetstream
from banksman.bus.messages import Message, StoredMessage
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import Bucket, Entry, is_marker
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.runtime.scope import Scoped
from banksman.runtime.waits import set_within

T = TypeVar("T", bound=BaseModel)

CHECK_S: Mapping[Replicas, float] = {1: 60.0, 3: 20.0}
"""Seconds between comparisons with the stream, by number of replicas. One server loses a message to a client
only with the connection or in a full queue, and both begin a comparison."""


class BucketView(Scoped, Generic[T]):
    """All entries of a bucket, a moment behind the stream.

    As a context manager, the view is loaded when the block begins. A decision that needs the current value
    uses `Bucket.get`, which reads from the leader.
    """

    def __init__(
        self,
        bucket: Bucket[T],
        *,
        on_change: Callable[[str, Entry[T] | None], None] | None = None,
        check_s: float | None = None,
        ttl_s: float | None = None,
    ) -> None:
        """Create a view.

        Args:
            on_change: Called with a key and its new entry, or None when it has ended; must not block.
            check_s: Seconds between comparisons with the stream; None for `CHECK_S`.
            ttl_s: Seconds after which an entry ends unless it is written again; None for no limit.
        """
        self._bucket = bucket
        self._on_change = on_change
        self._check_s = CHECK_S[bucket.bus.settings.replicas] if check_s is None else check_s
        self._ttl_s = ttl_s
        self._ends_at: dict[str, float] = {}
        """Event loop time at which each entry ends unless it is written again; the earliest first."""
        self._missing: set[str] = set()
        """Keys that the last comparison found neither here nor in the stream."""
        self._entries: dict[str, Entry[T]] = {}
        self._by_first_token: dict[str, dict[str, Entry[T]]] = {}
        """The same entries, indexed to find those of one server or tenant without scanning all."""
        self._revisions: dict[str, int] = {}
        """The newest known revision of each key, deleted keys included."""
        self._unreadable: list[tuple[StoredMessage, str]] = []
        """Undecodable entries to report, with the reason. The view does not contain them."""
        self._stale = asyncio.Event()
        self._changed = asyncio.Event()

    def get(self, key: str) -> Entry[T] | None:
        return self._entries.get(key)

    def entries(self, prefix: str = "") -> list[Entry[T]]:
        """Return the entries whose keys begin with `prefix`, sorted by key."""
        first, dot, _ = prefix.partition(".")
        found = self._by_first_token.get(first, {}) if dot else self._entries
        return [found[key] for key in sorted(key for key in found if key.startswith(prefix))]

    async def wait_for(self, holds: Callable[[Self], bool]) -> None:
        """Wait until `holds` is true of this view; the caller sets the deadline."""
        while not holds(self):
            self._changed.clear()
            await self._changed.wait()

    async def _enter(self, scope: AsyncExitStack) -> None:
        bus, name = self._bucket.bus, self._bucket.name
        pattern = subjects.stored(self._bucket.below())
        # Subscribed before the load, so that no change between the two is missed.
        scope.push_async_callback((await bus.subscribe(pattern, self._received)).unsubscribe)
        await self.refresh()
        scope.callback(bus.on_loss(self._stale.set, pattern))
        check = bus.background.repeat(f"bucket-{name}", self._check, wait=self._wait)
        scope.push_async_callback(check.stop)
        if self._ttl_s is not None:
            expiry = bus.background.repeat(f"bucket-{name}-expiry", self._expire, wait=self._wait_to_expire)
            scope.push_async_callback(expiry.stop)

    async def _wait(self) -> None:
        await set_within(self._stale, self._check_s)
        self._stale.clear()

    async def _check(self) -> None:
        await self.refresh()
        while self._unreadable:
            await self._bucket.unreadable.report(*self._unreadable.pop())

    async def refresh(self) -> None:
        """Compare with the stream; afterwards the view is as new as the stream was at the call."""
        known = set(self._entries)
        stored: set[str] = set()
        bucket = self._bucket
        async for message in jetstream.read(bucket.bus, bucket.stream, bucket.below(), current=True):
            stored.add(bucket.key_of(message.subject))
            self._apply(message)
        for key in known - stored:
            # A lagging replica may not have the key yet, so only a leader without the key shows its deletion.
            subject = self._bucket.subject(key)
            message = await jetstream.last_message(self._bucket.bus, self._bucket.stream, subject)
            if message is None:
                self._set(key, None)
            else:
                self._apply(message)
        self._forget(self._revisions.keys() - stored - self._entries.keys())

    def _forget(self, missing: set[str]) -> None:
        """Forget the revisions of keys that two comparisons in a row did not find.

        After the first comparison, a republished message of such a key may still be in flight.
        """
        for key in missing & self._missing:
            del self._revisions[key]
        self._missing = missing

    async def _wait_to_expire(self) -> None:
        assert self._ttl_s is not None
        now = asyncio.get_running_loop().time()
        # An entry that is written meanwhile ends at least `ttl_s` from now.
        await asyncio.sleep(next(iter(self._ends_at.values()), now + self._ttl_s) - now)

    async def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, ends_at in self._ends_at.items() if ends_at <= now]:
            await self.compare(key, expired=True)

    async def compare(self, key: str, *, expired: bool = False) -> None:
        """Compare one entry with the stream; an `expired` one also ends if it was not written again."""
        revision = self._revisions.get(key, 0)
        subject = self._bucket.subject(key)
        message = await jetstream.last_message(self._bucket.bus, self._bucket.stream, subject)
        if self._revisions.get(key, 0) != revision:
            return  # It was written again during the read.
        if message is None or (expired and message.stream_seq <= revision):
            self._set(key, None)
        else:
            self._apply(message)

    async def _received(self, message: Message) -> None:
        self._apply(jetstream.republished(message))

    def _apply(self, message: StoredMessage) -> None:
        key = self._bucket.key_of(message.subject)
        if message.stream_seq <= self._revisions.get(key, 0):
            return
        self._revisions[key] = message.stream_seq
        try:
            self._set(key, None if is_marker(message) else self._bucket.entry(message))
        except Poison as poison:
            # The entry is removed, so that the view equals that of a process that starts now.
            self._set(key, None)
            self._unreadable.append((message, poison.reason))
            self._stale.set()

    def _set(self, key: str, entry: Entry[T] | None) -> None:
        self._ends_at.pop(key, None)
        first = key.partition(".")[0]
        if entry is not None:
            self._entries[key] = entry
            self._by_first_token.setdefault(first, {})[key] = entry
            if self._ttl_s is not None:
                self._ends_at[key] = asyncio.get_running_loop().time() + self._ttl_s
        elif self._entries.pop(key, None) is None:
            return
        else:
            siblings = self._by_first_token[first]
            del siblings[key]
            if not siblings:
                del self._by_first_token[first]
        self._changed.set()
        if self._on_change:
            self._on_change(key, entry)
