"""Schedules: create, list, read, replace, delete, run now."""

from __future__ import annotations

from banksman.gateway.operation.parameters import CallerDep, RequestId, ServiceDep
from banksman.gateway.operation.routing import StrictBody, router
from banksman.gateway.schedules.models import (
    ComingStarts,
    ListedSchedule,
    ReadSchedule,
    ScheduleBody,
    ScheduledRun,
)
from banksman.gateway.service.bodies import Listing

routes = router("schedules")


@routes.get("/context/schedules")
async def list_schedules(gateway: ServiceDep, caller: CallerDep) -> Listing[ListedSchedule]:
    """List the tenant's schedules, oldest first, each with its last run."""
    return Listing[ListedSchedule](items=await gateway.schedules.list(caller))


@routes.post("/context/schedules", status_code=201)
async def create_schedule(
    body: StrictBody[ScheduleBody], gateway: ServiceDep, caller: CallerDep, request_id: RequestId
) -> ReadSchedule:
    """Create a schedule. Its runs act as the caller, with the rights that the caller has now."""
    return await gateway.schedules.create(caller, body, request_id)


@routes.get("/context/schedules/coming")
async def coming_starts(gateway: ServiceDep, caller: CallerDep) -> Listing[ComingStarts]:
    """List when the tenant's schedules start in the next two weeks."""
    return Listing[ComingStarts](items=await gateway.schedules.coming(caller))


@routes.get("/context/schedules/{schedule_id}")
async def read_schedule(schedule_id: str, gateway: ServiceDep, caller: CallerDep) -> ReadSchedule:
    """Read a schedule with its last runs and their status."""
    return await gateway.schedules.get(caller, schedule_id)


@routes.put("/context/schedules/{schedule_id}")
async def replace_schedule(
    schedule_id: str, body: StrictBody[ScheduleBody], gateway: ServiceDep, caller: CallerDep
) -> ReadSchedule:
    """Replace a schedule, also to pause and to resume it. From now on its runs act as the caller."""
    return await gateway.schedules.replace(caller, schedule_id, body)


@routes.delete("/context/schedules/{schedule_id}", status_code=204)
async def delete_schedule(schedule_id: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete a schedule. Runs that it started continue."""
    await gateway.schedules.delete(caller, schedule_id)


@routes.post("/context/schedules/{schedule_id}/run", status_code=202)
async def run_schedule(
    schedule_id: str, gateway: ServiceDep, caller: CallerDep, request_id: RequestId
) -> ScheduledRun:
    """Start the run of a schedule now, as the caller. The next scheduled time is unchanged."""
    return await gateway.schedules.run(caller, schedule_id, request_id)
