"""Start the runs of schedules when they are due, each once.

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
from banksman.bus.names import SCHEDULES, TIMERS
from banksman.bus.queues.work import Done, Later, Outcome, WorkMessage, work
from banksman.bus.storage.kv import Entry
from banksman.contracts.errors import BanksmanError
from banksman.contracts.frames import Ack, ChatSend, ConversationCreate, WorkflowStart
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.runs.idempotency import DerivedIds
from banksman.gateway.schedules.models import (
    Schedule,
    ScheduledPrompt,
    ScheduledRun,
    ScheduledStart,
    ScheduledWorkflow,
    ScheduleError,
)
from banksman.gateway.schedules.store import ScheduleStore
from banksman.gateway.schedules.times import next_time
from banksman.quotas.places import Shares
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
UNKNOWN_TRIES, UNKNOWN_RETRY_S = 3, 1.0
"""Redeliveries of a timer without a schedule, with the seconds before each: a schedule is stored after its
timer is set."""


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
            ack = await start_run(
                self.dispatcher, caller, schedule.start, title=schedule.title, source=source
            )
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


async def start_run(
    dispatcher: Dispatcher, caller: Caller, start: ScheduledStart, *, title: str, source: str
) -> Ack:
    """Start a run; a later call with the same source starts no second run.

    All ids of the run are derived from `source`. An empty `title` is replaced by one from the message. Raises
    the errors of a client's request.
    """
    ids = DerivedIds(source)
    match start:
        case ScheduledWorkflow():
            frame = WorkflowStart(type="workflow.start", id="scheduled", **start.model_dump(exclude={"type"}))
            return await dispatcher.handle(caller, frame, requests=ids)
        case ScheduledPrompt():
            return await _send(dispatcher, caller, start, title, ids)


async def _send(
    dispatcher: Dispatcher, caller: Caller, start: ScheduledPrompt, title: str, ids: DerivedIds
) -> Ack:
    conversation_id = start.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create", id="scheduled", title=title, assistant=start.assistant
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
    )
    return await dispatcher.handle(caller, message, requests=ids)
