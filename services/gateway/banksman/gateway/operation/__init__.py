"""Operations: what clients may do at a gateway, each declared once beside the function that does it.

A feature declares its operations as FastAPI handlers:

    operations = Operations("schedules", right=CHAT)
    Service = Annotated[Schedules, provided(Schedules)]

    @operations.add("schedule.read", "GET /context/schedules/{schedule_id}")
    async def read_schedule(schedule_id: str, schedules: Service, caller: CallerDep) -> ReadSchedule:
        '''Read a schedule with its last runs and their status.'''
        return await schedules.get(caller, schedule_id)

From the declaration, `interfaces.http` makes a FastAPI route, `interfaces.nats` an endpoint of FastStream on
`api.{tenant}.schedule.read.{schedule_id}`, and `make docs` the route tables of the Python SDK and the page.
`Dispatcher` checks the right and records the action in the audit trail, for every interface.
"""
