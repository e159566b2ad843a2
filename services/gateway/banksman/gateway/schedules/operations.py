"""Schedules: create, list, read, replace, delete, run now."""

from __future__ import annotations

from typing import Annotated

from banksman.gateway.assistants.tenant_store import AssistantStore
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Audit, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestId, StrictBody, provided
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.runs import Runs
from banksman.gateway.schedules import models
from banksman.gateway.schedules.due import DueSchedules, ScheduleStore
from banksman.gateway.schedules.service import Schedules
from banksman.gateway.workflows.workflows import Workflows

Service = Annotated[Schedules, provided(Schedules)]
DETAILS = ("name", "enabled")

operations = Operations("schedules")


@operations.add("schedule.list", "GET /context/schedules")
async def list_schedules(schedules: Service, caller: CallerDep) -> Listing[models.ListedSchedule]:
    """List the tenant's schedules, oldest first, each with its last run."""
    return Listing[models.ListedSchedule](items=await schedules.list(caller))


@operations.add(
    "schedule.create",
    "POST /context/schedules",
    status=201,
    errors=(MISSING, CONFLICT, EARLY),
    audit=Audit("schedule.created", DETAILS),
)
async def create_schedule(
    body: StrictBody[models.ScheduleBody], schedules: Service, caller: CallerDep, request_id: RequestId
) -> models.ReadSchedule:
    """Create a schedule. Its runs act as the caller, with the rights that the caller has now."""
    return await schedules.create(caller, body, request_id)


@operations.add("schedule.coming", "GET /context/schedules/coming")
async def coming_starts(schedules: Service, caller: CallerDep) -> Listing[models.ComingStarts]:
    """List when the tenant's schedules start in the next two weeks."""
    return Listing[models.ComingStarts](items=await schedules.coming(caller))


@operations.add("schedule.read", "GET /context/schedules/{schedule_id}")
async def read_schedule(schedule_id: str, schedules: Service, caller: CallerDep) -> models.ReadSchedule:
    """Read a schedule with its last runs and their status."""
    return await schedules.get(caller, schedule_id)


@operations.add(
    "schedule.update", "PUT /context/schedules/{schedule_id}", audit=Audit("schedule.changed", DETAILS)
)
async def replace_schedule(
    schedule_id: str, body: StrictBody[models.ScheduleBody], schedules: Service, caller: CallerDep
) -> models.ReadSchedule:
    """Replace a schedule, also to pause and to resume it. From now on its runs act as the caller."""
    return await schedules.replace(caller, schedule_id, body)


@operations.add("schedule.delete", "DELETE /context/schedules/{schedule_id}", audit=Audit("schedule.deleted"))
async def delete_schedule(schedule_id: str, schedules: Service, caller: CallerDep) -> None:
    """Delete a schedule. Runs that it started continue."""
    await schedules.delete(caller, schedule_id)


@operations.add(
    "schedule.run",
    "POST /context/schedules/{schedule_id}/run",
    status=202,
    errors=(MISSING, CONFLICT, EARLY),
)
async def run_schedule(
    schedule_id: str, schedules: Service, caller: CallerDep, request_id: RequestId
) -> models.ScheduledRun:
    """Start the run of a schedule now, as the caller. The next scheduled time is unchanged."""
    return await schedules.run(caller, schedule_id, request_id)


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
