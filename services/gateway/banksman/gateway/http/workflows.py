"""Workflows: list, read, start."""

from __future__ import annotations

from fastapi import Response

from banksman.contracts.frames import WorkflowStart
from banksman.contracts.ids import check_token
from banksman.contracts.registry import ParsedWorkflow, WorkflowCategory, WorkflowDefinition
from banksman.gateway.asgi.dependencies import CallerDep, RequestId, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.http.models import AcceptedRun, NewWorkflowRun
from banksman.gateway.http.runs import Location, Wait, outcome
from banksman.gateway.service.bodies import EndedRun, Listing, Run, WorkflowText

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
    """Read which workflow a text starts, as a filled form for confirmation. It starts nothing."""
    return await gateway.workflow_texts.parse(caller, body.text, model=body.model)


@routes.get("/workflows/{name}")
async def read_workflow(name: str, gateway: ServiceDep, caller: CallerDep) -> WorkflowDefinition:
    """Read a workflow with the JSON Schema of its parameters."""
    return await gateway.workflows.get(caller.tenant, check_token(name, "name"))


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
