"""Limits of concurrency that follow the time of the broker's replies."""

from __future__ import annotations

import pytest

from banksman.quotas.adaptive import TARGET_S, AdaptiveLimit, ReplyTimes


def after(limit: AdaptiveLimit, periods: int, used: float, *, congested: bool) -> int:
    """Update a limit of which a share is used in each period; return the limit."""
    for _ in range(periods):
        limit.update(round(limit.now * used), congested=congested)
    return limit.now


def congested(times: ReplyTimes, *seconds: float) -> bool:
    for one in seconds:
        times.add(one)
    return times.congested()


def test_a_limit_grows_while_it_is_used_and_replies_are_fast() -> None:
    limit = AdaptiveLimit(4_000, least=32, initial=96)

    assert limit.now == 96
    assert after(limit, 5, 0.75, congested=False) > 2 * 96
    assert after(limit, 20, 0.75, congested=False) == 4_000


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    assert after(AdaptiveLimit(4_000, least=32, initial=96), 50, 0.3, congested=False) == 96


def test_congestion_shrinks_a_limit_from_what_is_used_to_its_minimum() -> None:
    limit = AdaptiveLimit(10_000, least=64)
    first = limit.update(300, congested=True)

    assert first == pytest.approx(0.9 * 300 / 0.75, abs=1)
    assert after(limit, 50, 0.75, congested=True) == 64
    assert limit.update(0, congested=False) == 10_000


def test_a_limit_below_the_minimum_is_kept() -> None:
    assert after(AdaptiveLimit(8, least=64), 50, 1.0, congested=True) == 8


def test_only_work_that_waits_for_the_highest_limit_exhausts_it() -> None:
    limit = AdaptiveLimit(16, least=8)
    for used, slow, wanted in ((12, False, True), (12, False, True)):
        limit.update(used, congested=slow, wanted=wanted)
    assert limit.exhausted == 2
    for used, slow, wanted in ((12, True, True), (12, False, False), (4, False, True)):
        limit.update(used, congested=slow, wanted=wanted)
        assert limit.exhausted == 0


def test_slow_replies_are_congestion_and_no_replies_are_not() -> None:
    times = ReplyTimes()

    assert not congested(times, 0.002, 0.004)
    assert congested(times, 2 * TARGET_S)
    assert not congested(times)
    assert not congested(times, 0.002)


def test_a_broker_that_stays_slow_is_accepted() -> None:
    """Its usual time is the measure, so that a slow disk does not keep every limit at its minimum."""
    times = ReplyTimes()
    found = [congested(times, 3 * TARGET_S) for _ in range(400)]

    assert found[0] and not found[-1]
    assert congested(times, 12 * TARGET_S)


def test_a_busy_system_permits_a_little_more_than_it_has() -> None:
    limit = AdaptiveLimit(10_000, least=256, initial=512)

    assert limit.update(400, congested=False, pace=8.0) == 408
    assert limit.update(408, congested=False, pace=8.0) == 416
    assert limit.update(10, congested=False, pace=8.0) == 256
    assert limit.update(200, congested=False) == 320


def test_replies_much_slower_than_the_fastest_ones_show_a_busy_system() -> None:
    times = ReplyTimes()

    assert not congested(times, 0.002)
    assert not times.busy
    assert not congested(times, 0.012)
    assert times.busy
    assert not congested(times)
    assert not times.busy
