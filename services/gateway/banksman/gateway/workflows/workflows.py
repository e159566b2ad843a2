"""A client of the workflows service, and the bodies with which users store workflows without code."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError, checked_reply
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.frames import WorkflowStart
from banksman.contracts.registry import (
    STORED_SERVER,
    CheckWorkflow,
    DeleteWorkflow,
    ListWorkflows,
    ParsedWorkflow,
    ParseWorkflow,
    StoreWorkflow,
    WorkflowCategories,
    WorkflowCategory,
    WorkflowChecked,
    WorkflowDefinition,
    WorkflowList,
    WorkflowName,
)
from banksman.contracts.wire import JsonObject, Token
from banksman.contracts.workflows import Built
from banksman.gateway.operation.parameters import RequestBody

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

    def definition(self, name: str) -> WorkflowDefinition:
        fields = {field: getattr(self, field) for field in WorkflowBody.model_fields}
        return WorkflowDefinition(name=name, server=STORED_SERVER, **fields)


class NewWorkflow(WorkflowBody):
    """A workflow to create."""

    name: Token


class WorkflowUpdate(WorkflowBody):
    """A workflow that replaces a stored one."""

    revision: int | None = None
    """The revision to replace; None replaces any."""


class Workflows:
    """The registered workflows. Methods raise `RemoteError` with the service's code, such as `not_found`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def list(self, tenant: str) -> tuple[WorkflowDefinition, ...]:
        return (await self._request("list", ListWorkflows(tenant=tenant), WorkflowList)).workflows

    async def categories(self, tenant: str) -> tuple[WorkflowCategory, ...]:
        request = ListWorkflows(tenant=tenant)
        return (await self._request("categories", request, WorkflowCategories)).categories

    async def get(self, tenant: str, name: str) -> WorkflowDefinition:
        return await self._request("get", WorkflowName(name=name, tenant=tenant), WorkflowDefinition)

    async def check(self, tenant: str, request: WorkflowStart) -> WorkflowChecked:
        """Return the parameters with defaults; raise `BadInput`, which names the field, if one is invalid."""
        check = CheckWorkflow(workflow=request.workflow, parameters=request.parameters, tenant=tenant)
        try:
            return await self._request("start", check, WorkflowChecked)
        except RemoteError as error:
            raise _of_field(error, "parameters.") from error

    async def create(self, tenant: str, body: NewWorkflow) -> WorkflowDefinition:
        """Store a new workflow; a repeated request returns the workflow of the first one."""
        definition = body.definition(body.name)
        return await self._store(StoreWorkflow(tenant=tenant, definition=definition, create=True))

    async def replace(self, tenant: str, name: str, body: WorkflowUpdate) -> WorkflowDefinition:
        store = StoreWorkflow(tenant=tenant, definition=body.definition(name), revision=body.revision)
        return await self._store(store)

    async def delete(self, tenant: str, name: str) -> None:
        await self._request("delete", DeleteWorkflow(tenant=tenant, name=name), WorkflowDefinition)

    async def _store(self, request: StoreWorkflow) -> WorkflowDefinition:
        try:
            return await self._request("store", request, WorkflowDefinition)
        except RemoteError as error:
            raise _of_field(error, "") from error

    async def parse(self, request: ParseWorkflow) -> ParsedWorkflow:
        """Return the form that a command or parameters fill, with its missing and invalid fields."""
        return await self._request("parse", request, ParsedWorkflow)

    async def _request(self, action: str, request: BaseModel, reply: type[M]) -> M:
        payload = request.model_dump_json().encode()
        data = checked_reply(await self._bus.request(subjects.workflow_api(action), payload, TIMEOUT_S))
        try:
            return reply.model_validate_json(data)
        except ValidationError as error:
            raise Unavailable(f"the workflows service sent an unreadable reply to {action!r}") from error


def _of_field(error: RemoteError, prefix: str) -> BadInput | RemoteError:
    details = error.frame.details or {}
    if "field" not in details:
        return error
    return BadInput(f"{prefix}{details['field']}", details.get("value"), str(details.get("expected")))
