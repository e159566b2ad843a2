"""Store schedules with the timers of their next runs, and start the runs when they are due, each once.

The broker delivers a schedule's message to one of the gateways. A message may arrive twice, late, or for a
time that is no longer due: the stored schedule decides. The ids of a run are derived from the schedule and
the due time, so no run starts twice, wherever a gateway ends.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.names import SCHEDULES, TIMERS
from banksman.bus.publish import schedule
from banksman.bus.queues.work import Done, Later, Outcome, WorkMessage, work
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict, NotFound
from banksman.contracts.frames import Ack, ChatSend, ConversationCreate, WorkflowStart
from banksman.contracts.ids import check_token
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.runs.idempotency import DerivedIds
from banksman.gateway.schedules.models import (
    DueTime,
    Schedule,
    ScheduledPrompt,
    ScheduledRun,
    ScheduledWorkflow,
    ScheduleError,
)
from banksman.gateway.schedules.times import next_time
from banksman.quotas.places import Shares
from banksman.quotas.stored import SharedBucket
from banksman.runs.ports import Clock

logger = logging.getLogger(__name__)

SLOTS = 16
"""Schedules that a gateway starts concurrently, shared by tenants."""
EARLY = timedelta(seconds=1)
"""Time by which a schedule may start early, because the gateway estimates the broker's time."""
MISSED_AFTER = timedelta(seconds=60)
"""Time after which a due run counts as missed."""
RETRY = timedelta(seconds=15)
"""Time until the retry of a start that a busy system refused."""
CHECK_S = 60.0
"""Seconds between checks for schedules that are overdue because their timer was lost."""
VIEW_CHECK_S = 600.0
"""Seconds between comparisons of the view with the bucket, which read all schedules. The view is only used to
find schedules whose timer was lost."""
UNKNOWN_TRIES, UNKNOWN_RETRY_S = 3, 1.0
"""Redeliveries of a timer without a schedule, with the seconds before each: a schedule is stored after its
timer is set."""


class ScheduleStore:
    """Schedules by tenant. A timer is only a hint: the stored schedule decides whether a run is due."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = SharedBucket(bus, SCHEDULES, Schedule, "schedules")
        self.view = BucketView(Bucket(bus, SCHEDULES, DueTime), check_s=VIEW_CHECK_S)
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
            due = subjects.schedule_due(tenant, schedule_id)
            await schedule(self._bus, subjects.schedule_set(tenant, schedule_id), due, at=at)


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """Starts the runs that are due. Requests messages from the broker only while schedules exist."""

    bus: Bus
    store: ScheduleStore
    dispatcher: Dispatcher
    clock: Clock

    async def run(self) -> None:
        """Start due runs; never returns."""
        await self.store.view.wait_for(lambda view: bool(view.entries()))
        await work(self.bus, TIMERS, SCHEDULES, self.on_due, slots=Shares(SLOTS))

    async def watch(self) -> None:
        """Set lost timers of overdue schedules again; never returns."""
        while True:
            await self.store.view.wait_for(lambda view: bool(view.entries()))
            now = self.clock.now()
            for entry in self.store.view.entries():
                if entry.value.next_at is not None and entry.value.next_at < now - MISSED_AFTER:
                    tenant, _, schedule_id = entry.key.partition(".")
                    await self.store.set_timer(tenant, schedule_id, now)
            await asyncio.sleep(CHECK_S)

    async def on_due(self, message: WorkMessage) -> Outcome:
        """Start the run that is due. Safe to run twice, because the run's ids are derived."""
        _, _, tenant, schedule_id = message.subject.split(".")
        entry = await self.store.find(tenant, schedule_id)
        if entry is None:
            return Done() if message.num_delivered > UNKNOWN_TRIES else Later(UNKNOWN_RETRY_S)
        due, now = entry.value.next_at, self.clock.now()
        if due is None:
            return Done()
        if due > now + EARLY:
            # This message was for an earlier time; its timer may have replaced the one for the next time.
            await self.store.set_timer(tenant, schedule_id, due)
            return Done()
        run = await self._start(tenant, entry.value, due, now)
        if run is None:
            await self.store.set_timer(tenant, schedule_id, now + RETRY)
            return Done()
        await self._note(tenant, entry, due, run)
        return Done()

    async def _start(
        self, tenant: str, schedule: Schedule, due: datetime, now: datetime
    ) -> ScheduledRun | None:
        """Start a run and return the result; None if the system was too busy."""
        handled = ScheduledRun(due_at=due, at=now, result="skipped", user=schedule.user)
        if schedule.missed == "skip" and now - due > MISSED_AFTER:
            return handled
        caller = Caller(tenant, schedule.user, rights=frozenset(schedule.rights))
        source = f"{tenant}/{schedule.id}/{due.isoformat()}"
        try:
            ack = await start_run(self.dispatcher, caller, schedule, source=source)
        except BanksmanError as error:
            logger.warning("schedule %s of %s did not start: %s", schedule.id, tenant, error)
            if error.retryable:
                return None
            reason = ScheduleError(code=error.code, message=error.public)
            return handled.model_copy(update={"result": "failed", "error": reason})
        logger.info("schedule started a run", extra={"schedule": schedule.id, "run_id": ack.run_id})
        ids = {"conversation_id": ack.conversation_id, "run_id": ack.run_id}
        return handled.model_copy(update={"result": "started", **ids})

    async def _note(self, tenant: str, entry: Entry[Schedule], due: datetime, run: ScheduledRun) -> None:
        """Store a run in its schedule, and the next due time, despite concurrent changes of the schedule."""
        while True:
            schedule = entry.value
            changed = schedule
            if all(known.due_at != due for known in schedule.runs):
                changed = schedule.with_run(run)
            if schedule.next_at == due:
                following = next_time(schedule.cron, schedule.timezone, max(due, run.at))
                changed = changed.model_copy(update={"next_at": following})
            if await self.store.replace(tenant, entry, changed):
                return
            found = await self.store.find(tenant, schedule.id)
            if found is None:
                return
            entry = found


async def start_run(dispatcher: Dispatcher, caller: Caller, schedule: Schedule, *, source: str) -> Ack:
    """Start a run; a later call with the same source starts no second run.

    All ids of the run are derived from `source`. An empty title is replaced by one from the message. Raises
    the errors of a client's request.
    """
    ids, start = DerivedIds(source), schedule.start
    match start:
        case ScheduledWorkflow():
            frame = WorkflowStart(
                type="workflow.start",
                id="scheduled",
                provenance=schedule.provenance,
                **start.model_dump(exclude={"type"}),
            )
            return await dispatcher.handle(caller, frame, requests=ids)
        case ScheduledPrompt():
            async with dispatcher.one_start(caller):
                return await _send(dispatcher, caller, schedule, start, ids)


async def _send(
    dispatcher: Dispatcher, caller: Caller, schedule: Schedule, start: ScheduledPrompt, ids: DerivedIds
) -> Ack:
    conversation_id = start.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create", id="scheduled", title=schedule.title, assistant=start.assistant
        )
        created: Ack = await dispatcher.handle(caller, create, requests=ids, title_from=start.content)
        conversation_id = created.conversation_id or ""
    message = ChatSend(
        type="chat.send",
        id="scheduled",
        conversation_id=conversation_id,
        content=start.content,
        overrides=start.overrides,
        variables=start.variables,
        provenance=schedule.provenance,
    )
    return await dispatcher.handle(caller, message, requests=ids)
