"""Workflows."""

from __future__ import annotations

from banksman.bus.control import Received
from banksman.contracts.errors import ErrorCode
from banksman.contracts.registry import ParsedWorkflow, WorkflowCategory, WorkflowDefinition
from banksman.gateway.interfaces.nats.endpoints import (
    Deleted,
    Endpoints,
    caller_of,
    named_by,
    tenant_of,
)
from banksman.gateway.service.bodies import Listing, WorkflowText
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.workflows.bodies import NewWorkflow, WorkflowUpdate

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY


def add_workflows(api: Endpoints, gateway: Gateway) -> None:
    """Serve the list of workflows. Frames start them."""

    @api.serve("workflow", "list")
    async def list_workflows(message: Received) -> Listing[WorkflowDefinition]:
        """List the workflows."""
        return Listing[WorkflowDefinition](items=await gateway.workflows.list(tenant_of(message)))

    @api.serve("workflow", "categories")
    async def list_categories(message: Received) -> Listing[WorkflowCategory]:
        """List the workflows by category."""
        return Listing[WorkflowCategory](items=await gateway.workflows.categories(tenant_of(message)))

    @api.serve("workflow", "read", "{workflow}", errors=(MISSING,))
    async def read_workflow(message: Received) -> WorkflowDefinition:
        """Read a workflow with the JSON Schema of its parameters, and the steps of one without code."""
        return await gateway.workflows.get(tenant_of(message), named_by(message))

    @api.serve("workflow", "create", errors=(CONFLICT,))
    async def create_workflow(request: NewWorkflow, message: Received) -> WorkflowDefinition:
        """Create a workflow without code."""
        return await gateway.workflows.create(tenant_of(message), request)

    @api.serve("workflow", "update", "{workflow}", errors=(MISSING, CONFLICT))
    async def update_workflow(request: WorkflowUpdate, message: Received) -> WorkflowDefinition:
        """Replace a workflow without code. Its open runs continue with the version that they started with."""
        return await gateway.workflows.replace(tenant_of(message), named_by(message), request)

    @api.serve("workflow", "delete", "{workflow}", errors=(MISSING,))
    async def delete_workflow(message: Received) -> Deleted:
        """Delete a workflow without code. Its open runs continue."""
        await gateway.workflows.delete(tenant_of(message), named_by(message))
        return Deleted(id=named_by(message))

    @api.serve("workflow", "parse", errors=(MISSING,))
    async def parse_workflow(request: WorkflowText, message: Received) -> ParsedWorkflow:
        """Return the workflow that a text describes, as a filled form for confirmation. It is not started."""
        return await gateway.workflow_texts.parse(caller_of(message), request.text, model=request.model)
