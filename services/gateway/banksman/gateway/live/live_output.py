"""The part of a conversation that is not stored: deltas and the progress of tool calls. It may be lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from banksman.bus.connection import Bus, BusSubscription
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.calls import CallProgress, Delta


class LiveFeed(Protocol):
    @property
    def shows_progress(self) -> bool: ...

    def take(self, live: Delta | CallProgress) -> None: ...

    def require_resync(self, reason: str) -> None: ...


@dataclass(eq=False)
class LiveChannel:
    """The core subscriptions of one conversation: deltas, and progress while a feed shows it."""

    bus: Bus
    key: tuple[str, str]
    """Tenant and conversation."""
    feeds: set[LiveFeed] = field(default_factory=set[LiveFeed])
    _open: dict[str, BusSubscription] = field(default_factory=dict[str, BusSubscription])
    # Subscribing waits for the server: two concurrent updates would subscribe twice.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def update(self) -> None:
        """Subscribe to the subjects that the feeds need, and unsubscribe from the others."""
        async with self._turn:
            await self._subscribe(bool(self.feeds), subjects.delta(*self.key), self._delta)
            wanted = any(feed.shows_progress for feed in self.feeds)
            await self._subscribe(wanted, subjects.tool_progress(*self.key), self._progress)

    async def _subscribe(self, wanted: bool, subject: str, received: Callable[[Message], None]) -> None:
        if wanted and subject not in self._open:
            # Without a task: the commit that completes a message is delivered on arrival, and would overtake
            # deltas that wait for theirs.
            self._open[subject] = await self.bus.listen(subject, received)
        elif not wanted and subject in self._open:
            await self._open.pop(subject).unsubscribe()

    def _delta(self, message: Message) -> None:
        with contextlib.suppress(ValidationError):
            delta = Delta.model_validate_json(message.data)
            for feed in tuple(self.feeds):
                feed.take(delta)

    def _progress(self, message: Message) -> None:
        with contextlib.suppress(ValidationError):
            progress = CallProgress.model_validate_json(message.data)
            for feed in tuple(self.feeds):
                if feed.shows_progress:
                    feed.take(progress)


class LiveChannels:
    """The channels of all open conversations: one for each, however many feeds it has."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._channels: dict[tuple[str, str], LiveChannel] = {}

    async def join(self, tenant: str, conversation_id: str, feed: LiveFeed) -> LiveChannel:
        key = tenant, conversation_id
        channel = self._channels.setdefault(key, LiveChannel(self._bus, key))
        channel.feeds.add(feed)
        await channel.update()
        return channel

    def feeds(self, tenant: str, conversation_id: str) -> tuple[LiveFeed, ...]:
        channel = self._channels.get((tenant, conversation_id))
        return () if channel is None else tuple(channel.feeds)

    async def leave(self, channel: LiveChannel, feed: LiveFeed) -> None:
        channel.feeds.discard(feed)
        if not channel.feeds and self._channels.get(channel.key) is channel:
            del self._channels[channel.key]
        await channel.update()
