"""Operations: what clients may do at a gateway, each declared once at the function that does it.

A feature declares its operations as FastAPI handlers: methods of the service that does them, or functions
that use several services. `self` of a method is a dependency like any other:

    operations = Operations("schedules", right=CHAT)

    class Schedules:
        @operations.add("schedule.read", "GET /context/schedules/{schedule_id}")
        async def read_schedule(self: Service, schedule_id: str, caller: CallerDep) -> ReadSchedule:
            '''Read a schedule with its last runs and their status.'''

    Service = Annotated[Schedules, provided(Schedules)]

From the declaration, `interfaces.http` makes a FastAPI route, `interfaces.nats` an endpoint of FastStream on
`api.{tenant}.schedule.read.{schedule_id}`, and `make docs` the route tables of the Python SDK and the page.
`Dispatcher` checks the right and records the action in the audit trail, for every interface.
"""
