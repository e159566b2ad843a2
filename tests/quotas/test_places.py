"""Fair shares: how many places a tenant gets, and who is next."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from banksman.quotas.places import SharedPlaces, Shares
from tests.support.timeouts import WAIT_TIMEOUT_S


def taken_by(shares: Shares, tenant: str) -> int:
    """Take all places that a tenant may have, and return their number."""
    number = 0
    while shares.allows(tenant):
        shares.take(tenant)
        number += 1
    return number


@pytest.mark.parametrize(("places", "expected"), [(1, 1), (2, 2), (3, 3), (4, 3), (16, 12), (96, 72)])
def test_a_tenant_that_is_alone_gets_three_quarters(places: int, expected: int) -> None:
    assert taken_by(Shares(places), "a") == expected


def test_a_share_grows_again_when_the_others_give_their_places_back() -> None:
    shares = Shares(16)
    for _ in range(8):
        shares.take("other")
    assert taken_by(shares, "a") == 6
    for _ in range(8):
        shares.give_back("other")
    assert taken_by(shares, "a") == 6


@pytest.mark.parametrize("floods", [1, 2, 3, 9, 40])
def test_any_number_of_floods_leaves_a_place_for_the_next_tenant(floods: int) -> None:
    shares = Shares(16)
    for number in range(min(floods, 16)):
        taken_by(shares, f"flood{number}")
    assert taken_by(shares, "late") >= 1


def test_no_more_than_twice_the_places_are_ever_used() -> None:
    shares = Shares(4)
    assert sum(taken_by(shares, f"tenant{number}") for number in range(50)) == 8


def test_the_tenant_with_the_fewest_places_is_next() -> None:
    shares = Shares(16)
    for tenant in ("a", "a", "b"):
        shares.take(tenant)
    assert shares.next_of(["a", "b", "a", "c"]) == "c"
    assert shares.next_of(["a", "b"]) == "b"


def test_a_limit_applies_even_while_places_are_free() -> None:
    shares = Shares(16, {"a": 2}.get)
    assert (taken_by(shares, "a"), taken_by(shares, "b") > 2) == (2, True)


class Holder:
    """Takes places in the order of calls, and gives them back."""

    def __init__(self, places: SharedPlaces) -> None:
        self.places = places
        self.order: list[str] = []
        self._held: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()

    async def hold(self, tenant: str, name: str) -> None:
        self._held[name] = asyncio.Event()
        async with self.places.place(tenant):
            self.order.append(name)
            self._changed.set()
            await self._held[name].wait()

    def give_back(self, name: str) -> None:
        self._held[name].set()

    async def until(self, number: int) -> list[str]:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while len(self.order) < number:
                self._changed.clear()
                await self._changed.wait()
        return self.order


async def test_callers_of_one_tenant_get_their_places_in_order_of_arrival() -> None:
    holder = Holder(SharedPlaces(Shares(2)))
    async with asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3", "a4"):
            group.create_task(holder.hold("a", name))
        group.create_task(holder.hold("b", "b1"))
        # The other tenant passes the waiting callers, because it gets a place above the number of places.
        assert await holder.until(3) == ["a1", "a2", "b1"]
        for name, begun in (("a2", 3), ("b1", 4), ("a1", 5), ("a3", 5), ("a4", 5)):
            holder.give_back(name)
            await holder.until(begun)
    assert holder.order == ["a1", "a2", "b1", "a3", "a4"]


async def test_a_caller_that_is_cancelled_takes_no_place() -> None:
    places = SharedPlaces(Shares(1))
    holder = Holder(places)
    async with asyncio.TaskGroup() as group, AsyncExitStack() as first:
        await first.enter_async_context(places.place("a"))
        waiting = group.create_task(holder.hold("a", "cancelled"))
        last = group.create_task(holder.hold("a", "last"))
        await asyncio.sleep(0)
        waiting.cancel()
        # The place is handed out in the same moment, before the cancelled caller has run.
        await first.aclose()
        assert await holder.until(1) == ["last"]
        holder.give_back("last")
        await last
