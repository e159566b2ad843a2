"""The schedules of tenants in the bucket `schedules`, and the timers of their next runs."""

from __future__ import annotations

from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.names import SCHEDULES
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import check_token, new_id
from banksman.gateway.schedules.models import DueTime, Schedule
from banksman.quotas.stored import SharedBucket

CHECK_S = 600.0
"""Seconds between comparisons of the view with the bucket, which read all schedules. The view is only used to
find schedules whose timer was lost."""


class ScheduleStore:
    """Schedules by tenant. A timer is only a hint: the stored schedule decides whether a run is due."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = SharedBucket(bus, SCHEDULES, Schedule, "schedules")
        self.view = BucketView(Bucket(bus, SCHEDULES, DueTime), check_s=CHECK_S)
        """This gateway's view of the due times of all schedules."""

    async def list(self, tenant: str) -> list[Schedule]:
        found = [entry.value async for entry in self._bucket.entries(tenant)]
        return sorted(found, key=lambda schedule: (schedule.created_at, schedule.id))

    async def find(self, tenant: str, schedule_id: str) -> Entry[Schedule] | None:
        return await self._bucket.get(f"{tenant}.{check_token(schedule_id, 'schedule_id')}")

    async def get(self, tenant: str, schedule_id: str) -> Entry[Schedule]:
        entry = await self.find(tenant, schedule_id)
        if entry is None:
            raise NotFound("schedule", schedule_id)
        return entry

    async def create(self, tenant: str, schedule: Schedule, most: int) -> Schedule:
        """Return the new schedule, or the stored one with its id; raise `Conflict` above `most`."""
        if (stored := await self.find(tenant, schedule.id)) is not None:
            return stored.value
        if await self._has(tenant, most):
            raise Conflict(f"the tenant has {most} schedules; delete some first")
        # The timer is set first, so that no schedule lacks one if this process ends in between.
        await self.set_timer(tenant, schedule.id, schedule.next_at)
        await self._bucket.create(f"{tenant}.{schedule.id}", schedule)
        return schedule

    async def replace(self, tenant: str, entry: Entry[Schedule], schedule: Schedule) -> bool:
        """Store a changed schedule with its timer; return False after a concurrent change.

        The caller then reads the schedule again and retries, which also sets the right timer.
        """
        await self.set_timer(tenant, schedule.id, schedule.next_at)
        return await self._bucket.update(entry.key, schedule, entry.revision) is not None

    async def delete(self, tenant: str, schedule_id: str, now: datetime) -> None:
        await self._bucket.delete(f"{tenant}.{schedule_id}")
        # The timer fires at once and finds no schedule: deleting it would need the permission to purge.
        await self.set_timer(tenant, schedule_id, now)

    async def _has(self, tenant: str, most: int) -> bool:
        # The count includes deleted schedules for an hour, so a high count is verified by reading all of
        # them.
        below = self._bucket.subject(tenant) + f".{subjects.ANY}"
        if await count_below(self._bus, self._bucket.stream, below) < most:
            return False
        return len(await self._bucket.keys(tenant)) >= most

    async def set_timer(self, tenant: str, schedule_id: str, at: datetime | None) -> None:
        """Set the time at which the broker delivers a schedule, in place of the last one."""
        if at is not None:
            await durable(
                self._bus,
                subjects.schedule_set(tenant, schedule_id),
                b"",
                msg_id=new_id("timer-"),
                schedule_at=at,
                schedule_target=subjects.schedule_due(tenant, schedule_id),
            )
