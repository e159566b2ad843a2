"""Notifies the owners of one process: of stored starts and results, commits and cancel hints."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Self

from banksman.bus.connection import Bus, Subscription
from banksman.bus.live import LiveHub
from banksman.bus.log import StoredCommit
from banksman.bus.messages import Message
from banksman.bus.slots import AttemptSlots, StoredSlot, watch_results
from banksman.contracts import subjects
from banksman.contracts.calls import CallStarted
from banksman.contracts.errors import Poison
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.ports import Clock
from banksman.runs.state import Conversation

CACHED_ATTEMPTS = 20_000
"""Attempts of which a process remembers what was notified; the slots of others are read."""


@dataclass
class _DrivenConversation:
    """A conversation whose run this process drives."""

    log: ConversationLog
    tenant: str
    conversation_id: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    drivers: int = 0
    """More than one while a fenced owner of this process has not found the claim of the next owner here
    yet."""

    def on_commit(self, stored: StoredCommit) -> None:
        """Wake the driver, unless this process appended the commit itself."""
        if stored.stream_seq > self.log.cached(self.tenant, self.conversation_id).stream_seq:
            self.changed.set()


class OwnerNotifications:
    """Receives notifications; as a context manager it subscribes to them.

    Core messages may be lost, so owners also read the log from time to time; see `Notifications` in `ports`.
    """

    def __init__(self, bus: Bus, hub: LiveHub, log: ConversationLog, clock: Clock) -> None:
        self._bus = bus
        self._hub = hub
        self._log = log
        self._clock = clock
        self._driven: dict[tuple[str, str], _DrivenConversation] = {}
        self._slots: OrderedDict[tuple[str, str], AttemptSlots] = OrderedDict()
        """By tenant and attempt: a tenant's tool server may store anything, but only under its own tenant."""
        self._subscriptions: tuple[Subscription, ...] = ()

    async def __aenter__(self) -> Self:
        hints = await self._bus.subscribe(subjects.cancel_hint(subjects.ANY, subjects.ANY), self._hinted)
        self._subscriptions = (*await watch_results(self._bus, self._stored), hints)
        # What was published while the connection was down is lost.
        self._bus.on_reconnect(self.wake_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    @asynccontextmanager
    async def following(self, state: Conversation) -> AsyncGenerator[None]:
        """Receive what concerns one conversation while the context is open."""
        key = (state.tenant, state.conversation_id)
        driven = self._driven.setdefault(key, _DrivenConversation(self._log, *key))
        driven.drivers += 1
        try:
            following = await self._hub.follow(
                *key, after_stream_seq=state.stream_seq, on_commit=driven.on_commit
            )
            try:
                yield
            finally:
                await following.close()
        finally:
            driven.drivers -= 1
            if not driven.drivers:
                del self._driven[key]

    def slots(self, tenant: str, attempt: str) -> AttemptSlots:
        """Return what was notified of an attempt's slots since `slots` was first called for it."""
        key = (tenant, attempt)
        seen = self._slots.setdefault(key, AttemptSlots())
        self._slots.move_to_end(key)
        if len(self._slots) > CACHED_ATTEMPTS:
            self._slots.popitem(last=False)
        return seen

    async def wait(self, tenant: str, conversation_id: str, until: datetime) -> None:
        """Return when something of the conversation was stored since the last call, or at `until`."""
        driven = self._driven[(tenant, conversation_id)]
        seconds = max(0.0, (until - self._clock.now()).total_seconds())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await driven.changed.wait()
        # After the wait and not before: a notification between two waits must end the second one at once.
        driven.changed.clear()

    async def _stored(self, slot: StoredSlot) -> None:
        key = (slot.tenant, slot.attempt)
        # The stream republishes the slots of all calls; only those that an owner here waits for are stored.
        if key not in self._slots:
            return
        try:
            value = slot.decode()
        except Poison:
            return  # The owner finds it when it reads the slots.
        seen = self._slots[key]
        started = isinstance(value, CallStarted)
        self._slots[key] = replace(seen, started=value) if started else replace(seen, finished=value)
        self._wake(slot.tenant, value.conversation_id)

    async def _hinted(self, message: Message) -> None:
        _, tenant, conversation_id = message.subject.split(".")
        self._wake(tenant, conversation_id)

    def _wake(self, tenant: str, conversation_id: str) -> None:
        driven = self._driven.get((tenant, conversation_id))
        if driven is not None:
            driven.changed.set()

    def wake_all(self) -> None:
        """Wake all owners, for something that may concern any of them."""
        for driven in self._driven.values():
            driven.changed.set()
