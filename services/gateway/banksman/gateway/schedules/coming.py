"""When the schedules of a tenant start in the next two weeks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice

from banksman.gateway.schedules.models import ComingStarts, Schedule
from banksman.gateway.schedules.times import coming_times

PERIOD = timedelta(days=14)
MAX_STARTS = 4_000
"""Maximum listed starts of all schedules together. Computing one start takes 10 to 90 microseconds."""
MAX_STARTS_EACH = 340
"""Maximum listed starts of one schedule: every hour of the period, including hours that clocks repeat."""


async def coming_starts(schedules: Sequence[Schedule], now: datetime) -> tuple[ComingStarts, ...]:
    """Return the coming starts by schedule, in the order of `schedules`; schedules without any are omitted.

    Raises:
        BadInput: An expression is invalid, or a time zone is unknown.
    """
    waiting = [schedule for schedule in schedules if schedule.next_at is not None]
    each = min(MAX_STARTS_EACH, max(1, MAX_STARTS // max(1, len(waiting))))
    found: list[ComingStarts] = []
    for schedule in waiting:
        listed = _starts(schedule, now, each)
        if listed.starts:
            found.append(listed)
        # Let other requests run between schedules.
        await asyncio.sleep(0)
    return tuple(found)


def _starts(schedule: Schedule, now: datetime, most: int) -> ComingStarts:
    assert schedule.next_at is not None
    times = coming_times(schedule.cron, schedule.timezone, schedule.next_at, now, now + PERIOD)
    starts = tuple(islice(times, most + 1))
    return ComingStarts(schedule_id=schedule.id, starts=starts[:most], more=len(starts) > most)
