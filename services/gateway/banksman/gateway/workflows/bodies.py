"""The bodies with which clients create and replace workflows without code."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.registry import STORED_SERVER, WorkflowDefinition
from banksman.contracts.wire import JsonObject, Token
from banksman.contracts.workflows import Built
from banksman.gateway.operation.bodies import RequestBody


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
        """Return the workflow to store."""
        fields = {field: getattr(self, field) for field in WorkflowBody.model_fields}
        return WorkflowDefinition(name=name, server=STORED_SERVER, **fields)


class NewWorkflow(WorkflowBody):
    """A workflow to create."""

    name: Token


class WorkflowUpdate(WorkflowBody):
    """A workflow that replaces a stored one."""

    revision: int | None = None
    """The revision to replace; None replaces any."""
