"""Deliveries that wait for a slot of this process, and which of them starts next.

A worker also pulls while its slots are taken: behind the messages of one tenant there may be messages of
another one that finds a slot at once. Messages that cannot start wait here for a moment, the oldest first, so
that a freed slot is used at once. Messages over the limit go back to the queue, which delivers them again
later, to any worker.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from dataclasses import dataclass

from banksman.bus.queues.handling import WorkMessage
from banksman.quotas.places import Shares

MAX_HELD = 16
"""Maximum number of messages that wait in a process. Above it, the tenant with the most messages returns its
youngest one."""
HOLD_S = 0.5
"""Seconds after which a waiting message goes back, because another worker may have a free slot. Far shorter
than `ack_wait`, even with the time until the next check."""
RETURNS_PER_S = 100
"""Redeliveries of one tenant per second, unless the process ends more runs. This bounds the cost of a long
queue."""
MIN_RETURNS_PER_S = 10
SPARSE_S = 5.0
"""Seconds for which the redeliveries of a process that ends fewer runs are farther apart. Those after that
are not: if the process ended many runs at once, its slots would wait for them."""
ALL_RETURNS_PER_S = 1000
"""Redeliveries of all tenants per second."""
_GRAIN_S = 0.05
"""Redeliveries are due at multiples of this: the server scans all unacknowledged messages whenever one is
due."""


def tenant_of(message: WorkMessage) -> str:
    """Return the tenant of a message that starts or resumes a run, of a model or a workflow."""
    return message.subject.split(".")[-2]


@dataclass(slots=True)
class HeldDelivery:
    """A message that waits for a slot or is in work."""

    message: WorkMessage
    reply: str
    """The subject for the ack of the newest delivery; the deliveries before it may have expired."""
    tenant: str = ""
    """The tenant whose share its slot counts for; empty where tenants do not share the slots."""
    at: float = 0.0
    """The time of arrival, by the clock of the event loop."""
    short: bool = False
    """Whether its handler started without a free slot, because it most likely ends at once."""
    has_turn: bool = True
    """Whether its handler may begin a piece of work in the slot that it has."""
    waited: bool = False
    """Whether it waited for a slot."""


class ReturnTimes:
    """The times at which messages that go back to their queue are delivered again, in seconds."""

    def __init__(self) -> None:
        self._due: list[tuple[float, str]] = []
        """A heap with the due times of returned messages and their tenants."""
        self._last_due: dict[str, float] = {}
        """The due time of the last returned message, by tenant."""
        self._per_s: float = RETURNS_PER_S

    def adapt(self, ended_per_s: float) -> None:
        """Follow the messages that the process ends: more come back, so that no slot stays free."""
        self._per_s = max(MIN_RETURNS_PER_S, 1.25 * ended_per_s)

    def delay_s(self, tenant: str, now: float) -> float:
        """Return the delay of a message; the messages of a tenant come back one after another."""
        while self._due and self._due[0][0] <= now:
            at, of = heapq.heappop(self._due)
            if self._last_due.get(of) == at:
                del self._last_due[of]
        last = self._last_due.get(tenant, 0.0)
        per_s = self._per_s if last - now < SPARSE_S else max(self._per_s, RETURNS_PER_S)
        due = max(now + HOLD_S, now + len(self._due) / ALL_RETURNS_PER_S, last + 1 / per_s)
        self._last_due[tenant] = due
        heapq.heappush(self._due, (due, tenant))
        return math.ceil((due - now) / _GRAIN_S) * _GRAIN_S


class WaitingMessages:
    """The deliveries without a slot. Times are seconds of the event loop's clock."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._held: dict[int, HeldDelivery] = {}
        self.returns = ReturnTimes()
        self._handlers: dict[asyncio.Future[None], str] = {}
        """Handlers that gave their slot back and wait for the next one, with their tenants."""
        self._handler_was_last = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> tuple[HeldDelivery, ...]:
        return tuple(self._held.values())

    def add(self, delivery: HeldDelivery) -> None:
        """Add a delivery; a newer one of the same message replaces it."""
        self._held[delivery.message.stream_seq] = delivery

    def next(self) -> HeldDelivery | None:
        """Remove and return the delivery that takes the next slot; None if no tenant may take one.

        The next delivery is the oldest message of the tenant that uses the fewest slots.
        """
        oldest_first = sorted(self._held)
        tenant = self.shares.next_of(self._held[seq].tenant for seq in oldest_first)
        if tenant is None:
            return None
        self._handler_was_last = False
        return self._held.pop(next(seq for seq in oldest_first if self._held[seq].tenant == tenant))

    def turn(self, tenant: str) -> asyncio.Future[None]:
        """Take the slot of a handler back; the future is done when `resume` has given it the next one."""
        self.shares.give_back(tenant)
        waiter = asyncio.get_running_loop().create_future()
        self._handlers[waiter] = tenant
        return waiter

    def resume(self, *, again: bool = False) -> bool:
        """Give a slot to the handler that waits longest; False if none may, or it is a message's turn.

        Messages and handlers take turns, so that neither waits for all of the others; `again` gives handlers
        two turns in a row, when no message may have the slot.
        """
        found = next((one for one, of in self._handlers.items() if self.shares.allows(of)), None)
        if found is None or (self._held and self._handler_was_last and not again):
            return False
        self._handler_was_last = True
        self._end_turn(found)
        return True

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Give a slot, even above their number, to a handler that is cancelled while it waits."""
        if waiter in self._handlers:
            self._end_turn(waiter)

    def _end_turn(self, waiter: asyncio.Future[None]) -> None:
        self.shares.take(self._handlers.pop(waiter))
        if not waiter.done():
            waiter.set_result(None)

    def surplus(self, now: float) -> list[tuple[HeldDelivery, float]]:
        """Remove and return the deliveries above `MAX_HELD`, each with its delay in seconds."""
        found: list[tuple[HeldDelivery, float]] = []
        while len(self._held) > MAX_HELD:
            ((crowding, _),) = Counter(one.tenant for one in self._held.values()).most_common(1)
            youngest = max(seq for seq, one in self._held.items() if one.tenant == crowding)
            found.append((self._held.pop(youngest), self.returns.delay_s(crowding, now)))
        return found

    def expired(self, now: float) -> list[HeldDelivery]:
        """Remove and return the deliveries that have waited for `HOLD_S`."""
        late = [seq for seq, one in self._held.items() if now - one.at >= HOLD_S]
        return [self._held.pop(seq) for seq in late]

    def all(self) -> list[HeldDelivery]:
        held, self._held = list(self._held.values()), {}
        return held
