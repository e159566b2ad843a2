"""The ports of a process that drives runs, served by its connection to NATS; the notifications of owners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from banksman.bus.connection import Bus
from banksman.bus.messages import BusSubscription, Message
from banksman.bus.names import SEQUENCE
from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.slots import AttemptSlots, CallSlots, StoredSlot, watch_slots
from banksman.contracts import subjects
from banksman.contracts.calls import CallStarted
from banksman.contracts.errors import Fenced, Poison, Refused
from banksman.contracts.ids import new_id
from banksman.contracts.work import StartRun
from banksman.runs.loop import ModelPort, drive
from banksman.runs.owner import Ownership
from banksman.runs.ports import REDELIVERY_S, Clock, Log, Ports
from banksman.runs.runners.placement import Placements
from banksman.runs.state import Conversation
from banksman.runtime.scope import Scoped
from banksman.runtime.tracing import traced

logger = logging.getLogger(__name__)


def bus_ports(
    bus: Bus,
    clock: Clock,
    log: Log,
    placements: Placements,
    notifications: OwnerNotifications,
    signing_key: bytes,
    *,
    prefix: str,
    capped: Callable[[StartRun], StartRun] = lambda start: start,
) -> Ports:
    """Return the ports of this process, with a new owner id that begins with `prefix`."""
    return Ports(
        agent=new_id(prefix),
        clock=clock,
        log=log,
        slots=CallSlots(bus),
        approvals=ApprovalSlots(bus),
        work=RunQueue(bus),
        runners=placements,
        notifications=notifications,
        # Verifies the stored replies; also needed by a process that only closes requests.
        signing_key=signing_key,
        reconnected=partial(bus.reconnected_within, REDELIVERY_S),
        capped=capped,
    )


FIRST_CHECK_S = 1.0
"""Seconds after which a waiting owner reads its log for the first time: in a cluster, a new subscription
takes a moment to reach the server that forwards commits."""
CHECK_S = 20.0
"""Seconds between later reads, because a lost notification leaves no trace."""


@dataclass
class _WatchedAttempt:
    subscriptions: BusSubscription
    slots: AttemptSlots = field(default_factory=AttemptSlots)
    shown: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when a start or a result was received; a void does not count."""


@dataclass
class _DrivenConversation:
    bus: Bus
    tenant: str
    check_at: float
    """When the owner reads the log without a notification, by the clock of the event loop."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    newest: int = 0
    """Stream sequence of the newest commit that was notified."""
    unsure: bool = False
    """Whether there may be stored commits without a notification."""
    slots_changed: bool = False
    drivers: int = 0
    """Owners in this process; more than one until a fenced owner finds the claim of the next one."""
    attempts: dict[str, _WatchedAttempt] = field(default_factory=dict[str, _WatchedAttempt])

    async def slots(self, attempt: str) -> AttemptSlots:
        """Return the slots of an attempt as received since the first call of this method for it.

        Each attempt has its own subscriptions: with one for all attempts, every process that drives runs
        would receive the slots of all others.
        """
        watched = self.attempts.get(attempt)
        if watched is None:
            subscriptions = await watch_slots(self.bus, self._stored, tenant=self.tenant, attempt=attempt)
            watched = self.attempts.setdefault(attempt, _WatchedAttempt(subscriptions))
            if watched.subscriptions is not subscriptions:
                # A second driver subscribed meanwhile.
                await subscriptions.unsubscribe()
        return watched.slots

    async def forget(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            if watched := self.attempts.pop(attempt, None):
                await watched.subscriptions.unsubscribe()

    def _stored(self, slot: StoredSlot) -> None:
        watched = self.attempts.get(slot.attempt)
        if watched is None:
            return
        try:
            value = slot.decode()
        except Poison:
            return  # The owner finds the message when it reads the slots.
        if isinstance(value, CallStarted):
            watched.slots = replace(watched.slots, started=value)
        else:
            watched.slots = replace(watched.slots, finished=value)
        if not (isinstance(value, CallStarted) and value.void) and not watched.shown.done():
            watched.shown.set_result(None)
        self.note(commits=False)

    def committed(self, message: Message) -> None:
        """Record the sequence of a commit; an owner with an older state reads the log."""
        sequence = message.headers.get(SEQUENCE, "")
        self.newest = max(self.newest, int(sequence) if sequence.isdecimal() else 0)
        self.changed.set()

    def note(self, *, commits: bool) -> None:
        """Wake the owner. `commits` is True if the log may have new commits, False if only slots changed."""
        self.unsure = self.unsure or commits
        self.slots_changed = self.slots_changed or not commits
        self.changed.set()

    def take(self, after: int) -> bool | None:
        """Return and reset the result of `OwnerNotifications.wait`; None if nothing was notified since."""
        commits = self.unsure or self.newest > after
        if not (commits or self.slots_changed):
            return None
        self.unsure = self.slots_changed = False
        return commits


class OwnerNotifications(Scoped):
    """Receives notifications from the first run that this process drives until the end of its context."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._driven: dict[tuple[str, str], _DrivenConversation] = {}
        self._hinting = False
        self._subscribing = asyncio.Lock()

    async def _enter(self, scope: AsyncExitStack) -> None:
        # Messages that are published while the connection is down, or to a full queue, are lost.
        scope.callback(self._bus.on_loss(self.wake_all))

    async def drive(self, owned: Ownership, model: ModelPort) -> bool:
        """Drive a claimed run; return False if an unforeseen error left it open.

        After such an error, the message is redelivered without a limit: a run ends in its log, as a crash
        loop or by its time limit, and never because its message was dead-lettered.
        """
        with traced(owned.run.settings.traceparent):
            try:
                async with self.following(owned.state):
                    await drive(owned, model)
            except (Fenced, Refused):
                raise
            except Exception:
                logger.exception("%s: driving its run failed", owned.state.conversation_id)
                return False
        return True

    @asynccontextmanager
    async def following(self, state: Conversation) -> AsyncGenerator[None]:
        await self._subscribe()
        key = (state.tenant, state.conversation_id)
        driven = self._driven.get(key)
        if driven is None:
            driven = self._driven[key] = _DrivenConversation(self._bus, state.tenant, _in(FIRST_CHECK_S))
        driven.drivers += 1
        try:
            # A commit that is stored before the subscription takes effect is found at the next commit, or at
            # the first check.
            subscription = await self._bus.listen(subjects.live(*key), driven.committed)
            try:
                yield
            finally:
                await subscription.unsubscribe()
        finally:
            driven.drivers -= 1
            if not driven.drivers:
                del self._driven[key]
                await driven.forget(tuple(driven.attempts))

    async def slots(self, state: Conversation, attempt: str) -> AttemptSlots:
        return await self._driven[state.tenant, state.conversation_id].slots(attempt)

    def shown(self, state: Conversation, attempt: str) -> asyncio.Future[None] | None:
        watched = self._driven[state.tenant, state.conversation_id].attempts.get(attempt)
        return None if watched is None else watched.shown

    async def forget(self, state: Conversation, attempts: Iterable[str]) -> None:
        await self._driven[state.tenant, state.conversation_id].forget(attempts)

    async def wait(self, state: Conversation, until: datetime) -> bool:
        driven = self._driven[(state.tenant, state.conversation_id)]
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + max(0.0, (until - self._clock.now()).total_seconds())
        # A notification between two waits ends the second wait at once, unless it is about a commit of the
        # waiting owner, which `state` includes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(ends_at, driven.check_at)):
                while (commits := driven.take(state.stream_seq)) is None:
                    driven.changed.clear()
                    await driven.changed.wait()
                return commits
        if loop.time() >= driven.check_at:
            driven.check_at = _in(CHECK_S)
        return True

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if not self._hinting:
                hinted = subjects.cancel_hint(subjects.ANY, subjects.ANY)
                hints = await self._bus.listen(hinted, self._hinted)
                self._scope.push_async_callback(hints.unsubscribe)
                self._hinting = True

    def _hinted(self, message: Message) -> None:
        _, tenant, conversation_id = message.subject.split(".")
        if driven := self._driven.get((tenant, conversation_id)):
            driven.note(commits=True)

    def wake_all(self) -> None:
        for driven in self._driven.values():
            driven.note(commits=True)


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
