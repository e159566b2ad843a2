"""Schedules: create, list, read, replace, delete, run now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, TypeVar

from banksman.bus.storage.kv import Entry
from banksman.contracts.errors import BadInput, NotFound
from banksman.contracts.frames import WorkflowStart
from banksman.contracts.ids import digest, new_id
from banksman.gateway.assistants.tenant_store import AssistantStore
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestId, StrictBody, provided
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.runs import Runs
from banksman.gateway.schedules import models, times
from banksman.gateway.schedules.due import DueSchedules, ScheduleStore, start_run
from banksman.gateway.settings import GatewaySettings
from banksman.gateway.workflows.workflows import Workflows
from banksman.runs.ports import Clock

Shown = TypeVar("Shown", models.ListedSchedule, models.ReadSchedule)

MAX_START_BYTES = 64 * 1024
"""Maximum bytes of a schedule's `start`, as JSON."""
DETAILS = ("name", "enabled")

operations = Operations("schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    store: ScheduleStore
    clock: Clock
    settings: GatewaySettings
    dispatcher: Dispatcher
    requests: StoredRequests
    runs: Runs
    conversations: Conversations
    assistants: AssistantStore
    workflows: Workflows

    @operations.add("schedule.list", "GET /context/schedules")
    async def list_schedules(self: Service, caller: CallerDep) -> Listing[models.ListedSchedule]:
        """List the tenant's schedules, oldest first, each with its last run."""
        stored = await self._visible(caller)
        return Listing[models.ListedSchedule](
            items=tuple(self._shown(caller, one, models.ListedSchedule) for one in stored)
        )

    @operations.add(
        "schedule.create", "POST /context/schedules", errors=(MISSING, CONFLICT, EARLY), audit=DETAILS
    )
    async def create_schedule(
        self: Service, body: StrictBody[models.ScheduleBody], caller: CallerDep, request_id: RequestId
    ) -> models.ReadSchedule:
        """Create a schedule. Its runs act as the caller, with the rights that the caller has now."""
        await self._check(caller, body)
        key = digest(f"{caller.user}\nschedule\n{request_id}".encode())
        ids = await self.requests.once(caller.tenant, key, body, {"id": new_id("sc-")})
        now = self.clock.now()
        schedule = models.Schedule(
            id=ids["id"],
            **body.model_dump(),
            created_at=now,
            updated_at=now,
            user=caller.user,
            rights=tuple(sorted(caller.rights)),
            next_at=self._next_at(body, now),
        )
        most = self.settings.max_schedules_per_tenant
        created = await self.store.create(caller.tenant, schedule, most)
        return self._shown(caller, created, models.ReadSchedule)

    @operations.add("schedule.coming", "GET /context/schedules/coming")
    async def coming_starts(self: Service, caller: CallerDep) -> Listing[models.ComingStarts]:
        """List when the tenant's schedules start in the next two weeks."""
        stored = await self._visible(caller)
        return Listing[models.ComingStarts](items=await times.coming_starts(stored, self.clock.now()))

    @operations.add("schedule.read", "GET /context/schedules/{schedule_id}")
    async def read_schedule(self: Service, schedule_id: str, caller: CallerDep) -> models.ReadSchedule:
        """Read a schedule with its last runs and their status."""
        schedule = (await self._entry(caller, schedule_id)).value
        runs = tuple([await self._with_status(caller.tenant, run) for run in schedule.runs])
        return self._shown(caller, schedule.model_copy(update={"runs": runs}), models.ReadSchedule)

    @operations.add("schedule.update", "PUT /context/schedules/{schedule_id}", audit=DETAILS)
    async def replace_schedule(
        self: Service, schedule_id: str, body: StrictBody[models.ScheduleBody], caller: CallerDep
    ) -> models.ReadSchedule:
        """Replace a schedule, also to pause and to resume it. From now on its runs act as the caller."""
        await self._check(caller, body)
        while True:
            entry = await self._entry(caller, schedule_id)
            now = self.clock.now()
            changed = models.Schedule(
                id=schedule_id,
                **body.model_dump(),
                created_at=entry.value.created_at,
                updated_at=now,
                user=caller.user,
                rights=tuple(sorted(caller.rights)),
                next_at=_unchanged_due_time(entry.value, body) or self._next_at(body, now),
                runs=entry.value.runs,
            )
            if await self.store.replace(caller.tenant, entry, changed):
                return self._shown(caller, changed, models.ReadSchedule)

    @operations.add("schedule.delete", "DELETE /context/schedules/{schedule_id}", audit=())
    async def delete_schedule(self: Service, schedule_id: str, caller: CallerDep) -> None:
        """Delete a schedule. Runs that it started continue."""
        await self._entry(caller, schedule_id)
        await self.store.delete(caller.tenant, schedule_id, self.clock.now())

    @operations.add(
        "schedule.run",
        "POST /context/schedules/{schedule_id}/run",
        status=202,
        errors=(MISSING, CONFLICT, EARLY),
    )
    async def run_schedule(
        self: Service, schedule_id: str, caller: CallerDep, request_id: RequestId
    ) -> models.ScheduledRun:
        """Start the run of a schedule now, as the caller. The next scheduled time is unchanged."""
        entry = await self._entry(caller, schedule_id)
        # With the request's id, a repeated request starts no second run.
        source = f"{caller.tenant}/{schedule_id}/{caller.user}/{request_id}"
        ack = await start_run(self.dispatcher, caller, entry.value, source=source)
        run = models.ScheduledRun(
            due_at=None,
            at=self.clock.now(),
            result="started",
            user=caller.user,
            conversation_id=ack.conversation_id,
            run_id=ack.run_id,
        )
        await self._note(caller.tenant, entry, run)
        return run

    async def _visible(self, caller: Caller) -> list[models.Schedule]:
        return [one for one in await self.store.list(caller.tenant) if not self._hides(caller, one.start)]

    async def _entry(self, caller: Caller, schedule_id: str) -> Entry[models.Schedule]:
        entry = await self.store.get(caller.tenant, schedule_id)
        if self._hides(caller, entry.value.start):
            raise NotFound("schedule", schedule_id)
        return entry

    def _hides(self, caller: Caller, named: models.ScheduledStart | models.ScheduledRun) -> bool:
        """Return whether a schedule, or one of its runs, is in a conversation that a caller may not see."""
        return self.conversations.limited.hides(caller, named.conversation_id or "")

    def _shown(self, caller: Caller, schedule: models.Schedule, model: type[Shown]) -> Shown:
        """Return a schedule as a caller may see it: without the ids of runs in hidden conversations."""
        unnamed = {"conversation_id": None, "run_id": None, "status": None}
        runs = tuple(
            run.model_copy(update=unnamed) if self._hides(caller, run) else run for run in schedule.runs
        )
        fields = schedule.model_copy(update={"runs": runs}).model_dump(include=set(model.model_fields))
        return model(**fields, last_run=next(iter(runs), None))

    async def _note(
        self, tenant: str, entry: Entry[models.Schedule] | None, run: models.ScheduledRun
    ) -> None:
        while entry is not None and all(known.run_id != run.run_id for known in entry.value.runs):
            if await self.store.replace(tenant, entry, entry.value.with_run(run)):
                return
            entry = await self.store.find(tenant, entry.value.id)

    async def _check(self, caller: Caller, body: models.ScheduleBody) -> None:
        if (size := len(body.start.model_dump_json())) > MAX_START_BYTES:
            raise BadInput("start", None, f"at most {MAX_START_BYTES} bytes of JSON; it has {size}")
        await self._check_start(caller, body.start)

    async def _check_start(self, caller: Caller, start: models.PromptStart | models.WorkflowRunStart) -> None:
        tenant = caller.tenant
        if start.conversation_id is not None:
            await self.conversations.get(tenant, start.conversation_id)
        if isinstance(start, models.PromptStart):
            if start.conversation_id is None:
                await self.assistants.get(tenant, start.assistant)
            return
        frame = WorkflowStart(
            type="workflow.start", id="check", workflow=start.workflow, parameters=start.parameters
        )
        try:
            checked = await self.workflows.check(tenant, frame)
        except BadInput as error:
            raise BadInput(f"start.{error.field}", error.value, error.expected) from error
        properties = checked.workflow.parameters_schema.get("properties")
        for name in start.parameters:
            form = properties.get(name) if isinstance(properties, dict) else None
            if isinstance(form, dict) and form.get("x-hint") == "secret":
                # All users of the tenant can read schedules.
                raise BadInput(f"start.parameters.{name}", None, "no secret: a schedule shows its parameters")

    def _next_at(self, body: models.ScheduleBody, now: datetime) -> datetime | None:
        """Return when a schedule is due; None if it is paused. Its cron is checked even then."""
        if body.paused and body.at is not None and body.cron is None:
            return None
        first = times.first_time(body, now, timedelta(seconds=self.settings.min_schedule_interval_s))
        return None if body.paused else first

    async def _with_status(self, tenant: str, run: models.ScheduledRun) -> models.ScheduledRun:
        if run.run_id is None:
            return run
        try:
            found = await self.runs.get(tenant, run.run_id)
        except NotFound:
            return run
        return run.model_copy(update={"status": found.view.status})


Service = Annotated[Schedules, provided(Schedules)]


def _unchanged_due_time(schedule: models.Schedule, body: models.ScheduleBody) -> datetime | None:
    """Return the stored due time, which may be now, if the times are unchanged; None otherwise."""
    before = (schedule.at, schedule.cron, schedule.timezone)
    return schedule.next_at if before == (body.at, body.cron, body.timezone) and not body.paused else None


async def build(base: Foundation) -> None:
    services, enter, background = base.services, base.stack.enter_async_context, base.bus.background
    store = ScheduleStore(base.bus)
    await enter(store.view)
    due = DueSchedules(base.bus, store, base.dispatcher, base.clock)
    await enter(background.running("schedules", due.run))
    await enter(background.running("overdue schedules", due.watch))
    schedules = Schedules(
        store=store,
        clock=base.clock,
        settings=base.settings.gateway,
        dispatcher=base.dispatcher,
        requests=services[StoredRequests],
        runs=services[Runs],
        conversations=services[Conversations],
        assistants=services[AssistantStore],
        workflows=services[Workflows],
    )
    services.add(schedules)


FEATURE = Feature(operations, build)
