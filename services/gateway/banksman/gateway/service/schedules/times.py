"""When schedules are due. Cron expressions are read by `cronsim`, which follows Debian's cron."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from banksman.contracts.errors import BadInput
from banksman.gateway.service.schedules.models import ScheduleBody

CHECKED_TIMES = 100
"""Times of an expression that are compared with the shortest interval: more than minutes in an hour."""


def first_time(body: ScheduleBody, now: datetime, shortest: timedelta) -> datetime:
    """Return when a new schedule is due first, in UTC.

    Raises:
        BadInput: It has no future time, or is due more often than allowed.
    """
    if (body.at is None) == (body.cron is None):
        raise BadInput("at", body.at, "either `at` or `cron`, and not both")
    if body.cron is None:
        assert body.at is not None
        if body.at <= now:
            raise BadInput("at", body.at.isoformat(), "a time in the future")
        return body.at.astimezone(UTC)
    times = _times(body.cron, body.timezone, now, CHECKED_TIMES if shortest > timedelta(minutes=1) else 1)
    if not times:
        raise BadInput("cron", body.cron, "an expression with a time in the next 50 years")
    if any(later - earlier < shortest for earlier, later in pairwise(times)):
        seconds = int(shortest.total_seconds())
        raise BadInput("cron", body.cron, f"times that are at least {seconds} seconds apart")
    return times[0]


def next_time(cron: str | None, timezone: str, after: datetime) -> datetime | None:
    """Return when a schedule is due after a time, in UTC; None if it never is again.

    Raises:
        BadInput: The expression or the time zone is unknown.
    """
    return None if cron is None else next(iter(_times(cron, timezone, after, 1)), None)


def _times(cron: str, timezone: str, after: datetime, count: int) -> list[datetime]:
    # It is imported with the first schedule: most gateways have none.
    from cronsim import CronSim, CronSimError

    if len(cron.split()) != 5:
        # It also reads six fields, of which the first one is the second.
        raise BadInput("cron", cron, "five fields: minute, hour, day of month, month, day of week")
    try:
        found = CronSim(cron, after.astimezone(_zone(timezone)))
    except CronSimError as error:
        raise BadInput("cron", cron, f"a valid cron expression; {error}") from error
    # In the hour that clocks repeat, it begins with the first of both, which may be past.
    times = (one for one in (local.astimezone(UTC) for local in found) if one > after)
    return list(islice(times, count))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # A name may lead to a folder of the database, or out of it.
        raise BadInput("timezone", name, "an IANA time zone such as Europe/Berlin") from error
