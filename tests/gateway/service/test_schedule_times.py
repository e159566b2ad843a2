"""The due times of schedules, even when clocks change to and from summer time; and invalid times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from banksman.contracts.errors import BadInput
from banksman.gateway.schedules.models import Schedule, ScheduleBody
from banksman.gateway.schedules.times import MAX_STARTS, coming_starts, first_time, next_time

NOW = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BERLIN = "Europe/Berlin"


def body(**fields: Any) -> ScheduleBody:
    return ScheduleBody.model_validate({"start": {"type": "prompt", "content": "hi"}, **fields})


def times(cron: str, timezone: str, begin: str, count: int) -> list[str]:
    """Return the next local times of an expression, each computed from the one before."""
    found: list[str] = []
    after: datetime | None = datetime.fromisoformat(begin)
    while after is not None and len(found) < count:
        after = next_time(cron, timezone, after)
        found.append("never" if after is None else after.isoformat())
    return found


@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        # At 02:00 in Berlin clocks go forward to 03:00: a time in between is due then, once.
        ("30 2 * * *", "2026-03-28T12:00:00+01:00", ["2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
        ("0,30 2 * * *", "2026-03-28T12:00:00+01:00", ["2026-03-29T01:00:00", "2026-03-30T00:00:00"]),
        # At 03:00 clocks go back to 02:00: a time of day is due once; an interval continues.
        ("30 2 * * *", "2026-10-24T12:00:00+02:00", ["2026-10-25T00:30:00", "2026-10-26T01:30:00"]),
        ("0 * * * *", "2026-10-25T01:30:00+02:00", ["2026-10-25T00:00:00", "2026-10-25T01:00:00"]),
        # Within the repeated hour, the first 02:30 is past.
        ("30 2 * * *", "2026-10-25T02:10:00+01:00", ["2026-10-26T01:30:00", "2026-10-27T01:30:00"]),
        ("0 9 * * MON-FRI", "2026-11-20T12:00:00+01:00", ["2026-11-23T08:00:00", "2026-11-24T08:00:00"]),
    ],
)
def test_times_of_day_are_local_and_each_is_due_once(cron: str, begin: str, expected: list[str]) -> None:
    assert times(cron, BERLIN, begin, 2) == [f"{time}+00:00" for time in expected]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "at"),
        ({"at": "2027-01-01T00:00:00Z", "cron": "0 0 * * *"}, "at"),
        ({"at": "2026-11-23T12:00:30Z"}, "at"),
        ({"cron": "* * * *"}, "cron"),
        ({"cron": "0 * * * * *"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 */40 * MON#5"}, "cron"),
        ({"cron": "@daily"}, "cron"),
        ({"cron": "0 0 * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"cron": "0 0 * * *", "timezone": "Europe"}, "timezone"),
        ({"cron": "0 0 * * *", "timezone": "../../etc/passwd"}, "timezone"),
    ],
)
def test_a_time_that_is_never_due_is_refused_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        first_time(body(**fields), NOW, MINUTE)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("cron", "allowed"),
    [("0 * * * *", True), ("*/30 * * * *", False), ("0,59 * * * *", False), ("0,59 0,5,6 1 1 *", False)],
)
def test_an_operator_may_require_longer_intervals(cron: str, allowed: bool) -> None:
    try:
        found = first_time(body(cron=cron), NOW, timedelta(hours=1))
    except BadInput as refused:
        assert (refused.field, allowed) == ("cron", False)
    else:
        assert (found, allowed) == (datetime(2026, 11, 23, 13, tzinfo=UTC), True)


def stored(cron: str, next_at: datetime) -> Schedule:
    fields = {"id": "sc-1", "user": "ann", "rights": (), "next_at": next_at}
    return Schedule.model_validate(
        {**body(cron=cron).model_dump(), **fields, "created_at": NOW, "updated_at": NOW}
    )


async def test_a_missed_time_is_listed_once_among_the_next_starts() -> None:
    hours = timedelta(hours=3)
    [coming] = await coming_starts([stored("0 * * * *", NOW - hours)], NOW)
    assert coming.starts[:2] == (NOW - hours, datetime(2026, 11, 23, 13, tzinfo=UTC))


async def test_many_schedules_share_the_listed_starts_and_a_daily_one_shows_all_of_its_own() -> None:
    crowded, daily = stored("* * * * *", NOW), stored("0 9 * * *", NOW)
    coming = await coming_starts([*[crowded] * 199, daily], NOW)
    assert sum(len(one.starts) for one in coming) <= MAX_STARTS
    assert [(one.more, len(one.starts) > 14) for one in (coming[0], coming[-1])] == [
        (True, True),
        (False, True),
    ]
