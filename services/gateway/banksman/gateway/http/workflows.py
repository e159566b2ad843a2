"""Workflows: list, read, start; create, replace and delete those without code."""

from __future__ import annotations

from fastapi import Response

from banksman.contracts.frames import WorkflowStart
from banksman.contracts.ids import check_token
from banksman.contracts.registry import ParsedWorkflow, WorkflowCategory, WorkflowDefinition
from banksman.gateway.http.models import AcceptedRun, NewWorkflowRun
from banksman.gateway.http.runs import Location, Wait, outcome
from banksman.gateway.service.bodies import EndedRun, Listing, Run, WorkflowText
from banksman.gateway.service.dependencies import CallerDep, RequestId, ServiceDep
from banksman.gateway.service.routing import StrictBody, router
from banksman.gateway.workflows.bodies import NewWorkflow, WorkflowUpdate

routes = router("workflows")


@routes.get("/workflows")
async def list_workflows(gateway: ServiceDep, caller: CallerDep) -> Listing[WorkflowDefinition]:
    """List workflows."""
    return Listing[WorkflowDefinition](items=await gateway.workflows.list(caller.tenant))


@routes.get("/workflows/categories")
async def list_workflow_categories(gateway: ServiceDep, caller: CallerDep) -> Listing[WorkflowCategory]:
    """List workflows by category."""
    return Listing[WorkflowCategory](items=await gateway.workflows.categories(caller.tenant))


@routes.post("/workflows/parse")
async def parse_workflow(
    body: StrictBody[WorkflowText], gateway: ServiceDep, caller: CallerDep
) -> ParsedWorkflow:
    """Return the workflow that a text describes, as a filled form for confirmation. It is not started."""
    return await gateway.workflow_texts.parse(caller, body.text, model=body.model)


@routes.get("/workflows/{name}")
async def read_workflow(name: str, gateway: ServiceDep, caller: CallerDep) -> WorkflowDefinition:
    """Read a workflow with the JSON Schema of its parameters, and the steps of one without code."""
    return await gateway.workflows.get(caller.tenant, check_token(name, "name"))


@routes.post("/workflows", status_code=201)
async def create_workflow(
    body: StrictBody[NewWorkflow], gateway: ServiceDep, caller: CallerDep
) -> WorkflowDefinition:
    """Create a workflow without code.

    Its steps run one after the other: agent runs, tool calls, requests for a value, approval points. Texts
    refer to parameters (`{{parameters.topic}}`) and to the values of earlier steps (`{{steps.outline}}`).
    """
    return await gateway.workflows.create(caller.tenant, body)


@routes.put("/workflows/{name}")
async def update_workflow(
    name: str, body: StrictBody[WorkflowUpdate], gateway: ServiceDep, caller: CallerDep
) -> WorkflowDefinition:
    """Replace a workflow without code. Its open runs continue with the version that they started with."""
    return await gateway.workflows.replace(caller.tenant, check_token(name, "name"), body)


@routes.delete("/workflows/{name}", status_code=204)
async def delete_workflow(name: str, gateway: ServiceDep, caller: CallerDep) -> None:
    """Delete a workflow without code. Its open runs continue."""
    await gateway.workflows.delete(caller.tenant, check_token(name, "name"))


@routes.post(
    "/workflows/{name}/runs",
    status_code=202,
    response_model=EndedRun | Run | AcceptedRun,
    responses={
        200: {"model": EndedRun, "description": "The outcome, within `wait_s`", "headers": Location},
        202: {"description": "The run is stored, or has not ended within `wait_s`", "headers": Location},
    },
)
async def start_workflow(
    name: str,
    body: StrictBody[NewWorkflowRun],
    response: Response,
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
) -> AcceptedRun | Run:
    """Start a workflow."""
    frame = WorkflowStart(
        type="workflow.start", id=request_id, workflow=check_token(name, "name"), **dict(body)
    )
    accepted = AcceptedRun.of(await gateway.requests.handle(caller, frame))
    return await outcome(gateway, caller, response, accepted, wait_s)
