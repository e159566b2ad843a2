"""Computes when schedules are due. `cronsim`, which follows Debian's cron, parses cron expressions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice, pairwise, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from banksman.contracts.errors import BadInput
from banksman.gateway.schedules.models import ComingStarts, Schedule, ScheduleBody

CHECKED_TIMES = 100
"""Number of due times whose intervals are checked: more than there are minutes in an hour."""
PERIOD = timedelta(days=14)
MAX_STARTS = 4_000
"""Maximum listed starts of all schedules together. Computing one start takes 10 to 90 microseconds."""
MAX_STARTS_EACH = 340
"""Maximum listed starts of one schedule: every hour of the period, including hours that clocks repeat."""


def first_time(body: ScheduleBody, now: datetime, shortest: timedelta) -> datetime:
    """Return the first due time of a new schedule, in UTC.

    Raises:
        BadInput: The schedule has no future time, or is due more often than allowed.
    """
    if (body.at is None) == (body.cron is None):
        raise BadInput("at", body.at, "either `at` or `cron`, and not both")
    if body.cron is None:
        assert body.at is not None
        if body.at <= now:
            raise BadInput("at", body.at.isoformat(), "a time in the future")
        return body.at.astimezone(UTC)
    count = CHECKED_TIMES if shortest > timedelta(minutes=1) else 1
    times = list(islice(_times(body.cron, body.timezone, now), count))
    if not times:
        raise BadInput("cron", body.cron, "an expression with a time in the next 50 years")
    if any(later - earlier < shortest for earlier, later in pairwise(times)):
        seconds = int(shortest.total_seconds())
        raise BadInput("cron", body.cron, f"times that are at least {seconds} seconds apart")
    return times[0]


def next_time(cron: str | None, timezone: str, after: datetime) -> datetime | None:
    return None if cron is None else next(_times(cron, timezone, after), None)


def _times(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    # Imported with the first schedule, because most gateways have none.
    from cronsim import CronSim, CronSimError

    if len(cron.split()) != 5:
        # cronsim also accepts six fields, the first of which is the second of the minute.
        raise BadInput("cron", cron, "five fields: minute, hour, day of month, month, day of week")
    try:
        found = CronSim(cron, after.astimezone(_zone(timezone)))
    except CronSimError as error:
        raise BadInput("cron", cron, f"a valid cron expression; {error}") from error
    # In an hour that clocks repeat, cronsim begins with the first occurrence, which may be past.
    return (one for one in (local.astimezone(UTC) for local in found) if one > after)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # A name may be the path of a directory, or a path outside the database.
        raise BadInput("timezone", name, "an IANA time zone such as Europe/Berlin") from error


async def coming_starts(schedules: Sequence[Schedule], now: datetime) -> tuple[ComingStarts, ...]:
    """Return the coming starts by schedule, in the order of `schedules`, without schedules that have none."""
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
    first, cron = schedule.next_at, schedule.cron
    assert first is not None
    # Of past times only the stored one is listed, because several missed times start one run.
    later = iter(()) if cron is None else _times(cron, schedule.timezone, max(first, now))
    times = takewhile(lambda time: time < now + PERIOD, chain((first,), later))
    starts = tuple(islice(times, most + 1))
    return ComingStarts(schedule_id=schedule.id, starts=starts[:most], more=len(starts) > most)
