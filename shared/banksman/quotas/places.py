"""Fair shares of a number of places: slots of an agent, commands of a runner, places of a queue.

A single tenant may take three quarters of the places. The rest stays free, so that the next tenant finds
places at once and need not wait for one: the model request or command in a place may take minutes, and ending
it would waste its cost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

LENT = 3
"""A tenant may take another place while it has fewer than this many times the free places. Of n tenants that
take all they can, each gets 3 of 3n + 1 parts, and one part stays free."""


def within_share(used: int, free: int) -> bool:
    """Return whether a tenant that uses `used` places may take one of the `free` ones."""
    return used < LENT * free


def _unlimited(_tenant: str) -> int | None:
    return None


class Shares:
    """Counts the places that tenants use, and decides who may take another.

    A tenant that uses no place may also take one above the number of places, up to twice as many, because
    with few places or many tenants all places may be taken.
    """

    def __init__(
        self, places: int, limit_of: Callable[[str], int | None] = _unlimited, *, extra: int | None = None
    ) -> None:
        """Share a number of places.

        Args:
            limit_of: Returns the number of places that a tenant may use at most; None for no limit.
            extra: Places above that number, for tenants that use none; None for as many again.
        """
        self._places = places
        self._most = places + (places if extra is None else extra)
        self._limit_of = limit_of
        self._used: Counter[str] = Counter()
        self._total = 0

    @property
    def used(self) -> int:
        return self._total

    def resize(self, places: int) -> None:
        """Change the number of places; those above it become free when they are given back."""
        self._most += 2 * (places - self._places)
        self._places = places

    @property
    def free(self) -> int:
        return max(0, self._places - self._total)

    def allows(self, tenant: str) -> bool:
        """Return whether a tenant may take another place."""
        used, limit = self._used[tenant], self._limit_of(tenant)
        if limit is not None and used >= limit:
            return False
        return within_share(used, self.free) or (not used and self._total < self._most)

    def next_of(self, tenants: Iterable[str]) -> str | None:
        """Return the tenant that takes the next place; None if no tenant may take one.

        Of the tenants that may, the one with the fewest places is next; of equal ones, the first.
        """
        allowed = [tenant for tenant in dict.fromkeys(tenants) if self.allows(tenant)]
        return min(allowed, key=self._used.__getitem__, default=None)

    def take(self, tenant: str) -> None:
        """Count a place as used by a tenant."""
        self._used[tenant] += 1
        self._total += 1

    def give_back(self, tenant: str) -> None:
        """Count a place of a tenant as free."""
        self._used[tenant] -= 1
        self._total -= 1
        if not self._used[tenant]:
            del self._used[tenant]


class SharedPlaces:
    """Places for which callers wait. Callers of one tenant get places in order of arrival."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._waiting: dict[asyncio.Future[None], str] = {}

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncGenerator[None]:
        """Hold a place for the block, after waiting for it."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = tenant
        self._hand_out()
        try:
            await waiter
            yield
        finally:
            if self._waiting.pop(waiter, None) is None:
                self._shares.give_back(tenant)
            self._hand_out()

    def _hand_out(self) -> None:
        while (tenant := self._shares.next_of(self._waiting.values())) is not None:
            waiter = next(one for one, of in self._waiting.items() if of == tenant)
            del self._waiting[waiter]
            self._shares.take(tenant)
            if not waiter.cancelled():
                waiter.set_result(None)
