"""Schedules."""

from __future__ import annotations

from banksman.bus.control_plane.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.gateway.nats_api.endpoints import Endpoints, caller_of, named_by, request_id_of
from banksman.gateway.nats_api.messages import Deleted
from banksman.gateway.service.bodies import Listing
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.schedules.models import (
    ComingStarts,
    ListedSchedule,
    ReadSchedule,
    ScheduleBody,
    ScheduledRun,
)

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY


def add_schedules(api: Endpoints, gateway: Gateway) -> None:
    """Serve schedules."""

    @api.serve("schedule", "list")
    async def list_schedules(message: Received) -> Listing[ListedSchedule]:
        """List the schedules, oldest first, each with its last run."""
        return Listing[ListedSchedule](items=await gateway.schedules.list(caller_of(message)))

    @api.serve("schedule", "coming")
    async def coming_starts(message: Received) -> Listing[ComingStarts]:
        """List when the schedules start in the next two weeks."""
        return Listing[ComingStarts](items=await gateway.schedules.coming(caller_of(message)))

    @api.serve("schedule", "create", errors=(MISSING, CONFLICT, EARLY))
    async def create_schedule(request: ScheduleBody, message: Received) -> ReadSchedule:
        """Create a schedule; a repeated request id returns the one that was created."""
        return await gateway.schedules.create(caller_of(message), request, request_id_of(message))

    @api.serve("schedule", "read", "{schedule_id}", errors=(MISSING,))
    async def read_schedule(message: Received) -> ReadSchedule:
        """Read a schedule with its last runs and their status."""
        return await gateway.schedules.get(caller_of(message), named_by(message))

    @api.serve("schedule", "update", "{schedule_id}", errors=(MISSING,))
    async def update_schedule(request: ScheduleBody, message: Received) -> ReadSchedule:
        """Replace a schedule, also to pause and to resume it."""
        return await gateway.schedules.replace(caller_of(message), named_by(message), request)

    @api.serve("schedule", "delete", "{schedule_id}", errors=(MISSING,))
    async def delete_schedule(message: Received) -> Deleted:
        """Delete a schedule. Runs that it started continue."""
        await gateway.schedules.delete(caller_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("schedule", "run", "{schedule_id}", errors=(MISSING, CONFLICT, EARLY))
    async def run_schedule(message: Received) -> ScheduledRun:
        """Start the run of a schedule now; a repeated request id starts no second run."""
        return await gateway.schedules.run(caller_of(message), named_by(message), request_id_of(message))
