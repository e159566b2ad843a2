"""Workflows: list, read, start; create, replace and delete those without code."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response
from pydantic import Field

from banksman.bus.publish import RunQueue
from banksman.contracts.frames import Ack, WorkflowStart
from banksman.contracts.ids import check_token
from banksman.contracts.messages import PERSON, Provenance
from banksman.contracts.registry import ParsedWorkflow, WorkflowCategory, WorkflowDefinition
from banksman.contracts.wire import JsonObject, Token
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import model_names
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import (
    CallerDep,
    Listing,
    RequestBody,
    RequestId,
    StrictBody,
    provided,
)
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.bodies import AcceptedRun, EndedRun, Run
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.operations import Location, Started, Wait
from banksman.gateway.runs.starts import RunsOverHttp
from banksman.gateway.workflows.starts import WorkflowStarts, WorkflowTexts
from banksman.gateway.workflows.workflows import NewWorkflow, Workflows, WorkflowUpdate

Service = Annotated[Workflows, provided(Workflows)]
Starts = Annotated[WorkflowStarts, provided(WorkflowStarts)]
Requests = Annotated[StoredRequests, provided(StoredRequests)]

operations = Operations("workflows")


@operations.on_frame(
    WorkflowStart, "workflow", right=CHAT, errors=(MISSING, CONFLICT, EARLY), starts_work=True
)
async def start(frame: WorkflowStart, starts: Starts, requests: Requests, caller: CallerDep) -> Ack:
    """Start a workflow."""
    return await starts.start(caller, frame, requests)


@operations.add("workflow.list", "GET /workflows")
async def list_workflows(workflows: Service, caller: CallerDep) -> Listing[WorkflowDefinition]:
    """List workflows."""
    return Listing[WorkflowDefinition](items=await workflows.list(caller.tenant))


@operations.add("workflow.categories", "GET /workflows/categories")
async def list_workflow_categories(workflows: Service, caller: CallerDep) -> Listing[WorkflowCategory]:
    """List workflows by category."""
    return Listing[WorkflowCategory](items=await workflows.categories(caller.tenant))


class WorkflowText(RequestBody):
    """A text with which a user starts a workflow."""

    text: str = Field(min_length=1, max_length=20_000)
    """A command such as `/create_project demo template=web`, or plain language, which a model reads."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model` for plain language; None for the model of the default assistant."""


@operations.add("workflow.parse", "POST /workflows/parse", errors=(MISSING,))
async def parse_workflow(
    body: StrictBody[WorkflowText],
    texts: Annotated[WorkflowTexts, provided(WorkflowTexts)],
    caller: CallerDep,
) -> ParsedWorkflow:
    """Return the workflow that a text describes, as a filled form for confirmation. It is not started."""
    return await texts.parse(caller, body.text, model=body.model)


@operations.add("workflow.read", "GET /workflows/{name}")
async def read_workflow(name: str, workflows: Service, caller: CallerDep) -> WorkflowDefinition:
    """Read a workflow with the JSON Schema of its parameters, and the steps of one without code."""
    return await workflows.get(caller.tenant, check_token(name, "name"))


@operations.add("workflow.create", "POST /workflows", errors=(CONFLICT,), audit=("title",))
async def create_workflow(
    body: StrictBody[NewWorkflow], workflows: Service, caller: CallerDep
) -> WorkflowDefinition:
    """Create a workflow without code.

    Its steps run one after the other: agent runs, tool calls, requests for a value, approval points. Texts
    refer to parameters (`{{parameters.topic}}`) and to the values of earlier steps (`{{steps.outline}}`).
    """
    return await workflows.create(caller.tenant, body)


@operations.add("workflow.update", "PUT /workflows/{name}", errors=(MISSING, CONFLICT), audit=("title",))
async def update_workflow(
    name: str, body: StrictBody[WorkflowUpdate], workflows: Service, caller: CallerDep
) -> WorkflowDefinition:
    """Replace a workflow without code. Its open runs continue with the version that they started with."""
    return await workflows.replace(caller.tenant, check_token(name, "name"), body)


@operations.add("workflow.delete", "DELETE /workflows/{name}", audit=())
async def delete_workflow(name: str, workflows: Service, caller: CallerDep) -> None:
    """Delete a workflow without code. Its open runs continue."""
    await workflows.delete(caller.tenant, check_token(name, "name"))


class NewWorkflowRun(RequestBody):
    """The parameters of a workflow run."""

    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None
    provenance: Provenance = PERSON
    """Who wrote the parameters. A client states it if a person did not type all of them."""


@operations.add(
    "workflow.start",
    "POST /workflows/{name}/runs",
    status=202,
    response_model=Started,
    responses={
        200: {"model": EndedRun, "description": "The outcome, within `wait_s`", "headers": Location},
        202: {"description": "The run is stored, or has not ended within `wait_s`", "headers": Location},
    },
    not_over_nats="the frame `workflow.start` has the same fields",
    starts_work=True,
)
async def start_workflow(
    name: str,
    body: StrictBody[NewWorkflowRun],
    response: Response,
    starts: Starts,
    requests: Requests,
    over_http: Annotated[RunsOverHttp, provided(RunsOverHttp)],
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
) -> AcceptedRun | Run:
    """Start a workflow."""
    frame = WorkflowStart(
        type="workflow.start", id=request_id, workflow=check_token(name, "name"), **dict(body)
    )
    accepted = AcceptedRun.of(await starts.start(caller, frame, requests))
    return await over_http.outcome(caller, response, accepted, wait_s)


async def build(base: Foundation) -> None:
    services = base.services
    workflows = Workflows(base.bus)
    starts = WorkflowStarts(
        workflows=workflows,
        conversations=services[Conversations],
        assistants=services[GovernedAssistants],
        queue=services[RunQueue],
        backlog=services[Backlog],
        clock=base.clock,
        models=model_names(base.settings),
    )
    services.add(workflows, starts, WorkflowTexts(workflows=workflows, model=services[OneRequest]))


FEATURE = Feature(operations, build)
