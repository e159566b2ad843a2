"""A client of the workflows service, and the bodies with which users store workflows without code."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import registry, subjects
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.frames import WorkflowStart
from banksman.contracts.ids import check_token
from banksman.contracts.wire import JsonObject, Token
from banksman.contracts.workflows import Built
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestBody, StrictBody, provided

TIMEOUT_S = 5.0

M = TypeVar("M", bound=BaseModel)


class WorkflowBody(RequestBody):
    """A workflow without code as clients submit it."""

    title: str = Field(default="", max_length=200)
    description: str = Field(default="", max_length=4000)
    category: Token = "general"
    parameters_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of its parameter form, with hints (`x-hint`) and `x-positional`."""
    timeout_s: float = Field(default=3600.0, gt=0, le=86_400)
    """Maximum seconds of work, without the time of waiting for users."""
    built: Built
    """Its steps and its result."""

    def definition(self, name: str) -> registry.WorkflowDefinition:
        fields = {field: getattr(self, field) for field in WorkflowBody.model_fields}
        return registry.WorkflowDefinition(name=name, server=registry.STORED_SERVER, **fields)


class NewWorkflow(WorkflowBody):
    """A workflow to create."""

    name: Token


class WorkflowUpdate(WorkflowBody):
    """A workflow that replaces a stored one."""

    revision: int | None = None
    """The revision to replace; None replaces any."""


operations = Operations("workflows")


class Workflows:
    """The registered workflows. Methods raise `RemoteError` with the service's code, such as `not_found`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @operations.add("workflow.list", "GET /workflows")
    async def list_workflows(self: Service, caller: CallerDep) -> Listing[registry.WorkflowDefinition]:
        """List workflows."""
        reply = await self._request(
            "list", registry.ListWorkflows(tenant=caller.tenant), registry.WorkflowList
        )
        return Listing[registry.WorkflowDefinition](items=reply.workflows)

    @operations.add("workflow.categories", "GET /workflows/categories")
    async def list_workflow_categories(
        self: Service, caller: CallerDep
    ) -> Listing[registry.WorkflowCategory]:
        """List workflows by category."""
        reply = await self._request(
            "categories", registry.ListWorkflows(tenant=caller.tenant), registry.WorkflowCategories
        )
        return Listing[registry.WorkflowCategory](items=reply.categories)

    @operations.add("workflow.read", "GET /workflows/{name}")
    async def read_workflow(self: Service, name: str, caller: CallerDep) -> registry.WorkflowDefinition:
        """Read a workflow with the JSON Schema of its parameters, and the steps of one without code."""
        wanted = registry.WorkflowName(name=check_token(name, "name"), tenant=caller.tenant)
        return await self._request("get", wanted, registry.WorkflowDefinition)

    async def check(self, tenant: str, request: WorkflowStart) -> registry.WorkflowChecked:
        """Return the parameters with defaults; raise `BadInput`, which names the field, if one is invalid."""
        check = registry.CheckWorkflow(
            workflow=request.workflow, parameters=request.parameters, tenant=tenant
        )
        try:
            return await self._request("start", check, registry.WorkflowChecked)
        except RemoteError as error:
            raise _of_field(error, "parameters.") from error

    @operations.add("workflow.create", "POST /workflows", errors=(CONFLICT,), audit=("title",))
    async def create_workflow(
        self: Service, body: StrictBody[NewWorkflow], caller: CallerDep
    ) -> registry.WorkflowDefinition:
        """Create a workflow without code.

        Its steps run one after the other: agent runs, tool calls, requests for a value, approval points.
        Texts refer to parameters (`{{parameters.topic}}`) and to the values of earlier steps
        (`{{steps.outline}}`).
        """
        # A repeated request returns the workflow of the first one.
        definition = body.definition(body.name)
        return await self._store(
            registry.StoreWorkflow(tenant=caller.tenant, definition=definition, create=True)
        )

    @operations.add("workflow.update", "PUT /workflows/{name}", errors=(MISSING, CONFLICT), audit=("title",))
    async def update_workflow(
        self: Service, name: str, body: StrictBody[WorkflowUpdate], caller: CallerDep
    ) -> registry.WorkflowDefinition:
        """Replace a workflow without code. Its open runs continue with the version that they started with."""
        definition = body.definition(check_token(name, "name"))
        return await self._store(
            registry.StoreWorkflow(tenant=caller.tenant, definition=definition, revision=body.revision)
        )

    @operations.add("workflow.delete", "DELETE /workflows/{name}", audit=())
    async def delete_workflow(self: Service, name: str, caller: CallerDep) -> None:
        """Delete a workflow without code. Its open runs continue."""
        request = registry.DeleteWorkflow(tenant=caller.tenant, name=check_token(name, "name"))
        await self._request("delete", request, registry.WorkflowDefinition)

    async def _store(self, request: registry.StoreWorkflow) -> registry.WorkflowDefinition:
        try:
            return await self._request("store", request, registry.WorkflowDefinition)
        except RemoteError as error:
            raise _of_field(error, "") from error

    async def parse(self, request: registry.ParseWorkflow) -> registry.ParsedWorkflow:
        """Return the form that a command or parameters fill, with its missing and invalid fields."""
        return await self._request("parse", request, registry.ParsedWorkflow)

    async def _request(self, action: str, request: BaseModel, reply: type[M]) -> M:
        payload = request.model_dump_json().encode()
        data = checked_reply(await self._bus.request(subjects.workflow_api(action), payload, TIMEOUT_S))
        try:
            return reply.model_validate_json(data)
        except ValidationError as error:
            raise Unavailable(f"the workflows service sent an unreadable reply to {action!r}") from error


Service = Annotated[Workflows, provided(Workflows)]


def _of_field(error: RemoteError, prefix: str) -> BadInput | RemoteError:
    details = error.frame.details or {}
    if "field" not in details:
        return error
    return BadInput(f"{prefix}{details['field']}", details.get("value"), str(details.get("expected")))
