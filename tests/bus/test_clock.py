"""The broker clock, which all processes share."""

from __future__ import annotations

from datetime import datetime

import pytest

from banksman.bus.clock import Bounds, BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from tests.bus.builders import commit


async def test_the_broker_clock_matches_the_time_stamps_of_stored_messages(bus: Bus, tenant: str) -> None:
    async with BrokerClock(bus) as clock:
        before = clock.now()
        await EventLog(bus).append(tenant, "c1", commit(1), after=0)
        stored = await last_message(bus, EVENTS, subjects.conversation(tenant, "c1"))
        after = clock.now()

    assert stored is not None
    assert before.timestamp() - 1 < datetime.fromisoformat(stored.time).timestamp() < after.timestamp() + 1


async def test_before_the_first_response_the_clock_returns_the_time_of_the_machine(bus: Bus) -> None:
    before = datetime.now().astimezone()
    assert abs((BrokerClock(bus).now() - before).total_seconds()) < 60


def test_a_faster_response_narrows_the_interval() -> None:
    known = Bounds(10.0, 12.0, at=0.0)
    later = known.narrowed(Bounds(11.0, 15.0, at=0.0))
    assert (later.least, later.most) == (11.0, 12.0)


def test_a_slower_response_changes_nothing() -> None:
    assert Bounds(10.0, 10.1, at=0.0).narrowed(Bounds(5.0, 15.0, at=0.0)).middle == pytest.approx(10.05)


def test_the_interval_widens_with_time() -> None:
    later = Bounds(10.0, 10.0, at=0.0).narrowed(Bounds(0.0, 20.0, at=1000.0))
    assert later.least < 10.0 < later.most


@pytest.mark.parametrize("set_by", [-300.0, 300.0])
def test_a_change_of_the_brokers_clock_takes_effect_at_once(set_by: float) -> None:
    later = Bounds(10.0, 10.1, at=0.0).narrowed(Bounds(10.0 + set_by, 10.1 + set_by, at=20.0))
    assert later.middle == pytest.approx(10.05 + set_by)
