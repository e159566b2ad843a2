"""The start of workflows, by name or by a text."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response
from pydantic import Field

from banksman.bus.publish import RunQueue
from banksman.contracts.frames import Ack, WorkflowStart
from banksman.contracts.ids import check_token
from banksman.contracts.messages import PERSON, Provenance
from banksman.contracts.registry import ParsedWorkflow
from banksman.contracts.wire import JsonObject, Token
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestBody, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.bodies import AcceptedRun, EndedRun, Run
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.operations import Location, Started, Wait
from banksman.gateway.runs.starts import RunsOverHttp
from banksman.gateway.workflows.starts import WorkflowStarts, WorkflowTexts
from banksman.gateway.workflows.workflows import Workflows
from banksman.gateway.workflows.workflows import operations as workflow_operations

Starts = Annotated[WorkflowStarts, provided(WorkflowStarts)]
Requests = Annotated[StoredRequests, provided(StoredRequests)]

operations = Operations("workflows")


@operations.on_frame(
    WorkflowStart, "workflow", right=CHAT, errors=(MISSING, CONFLICT, EARLY), starts_work=True
)
async def start(frame: WorkflowStart, starts: Starts, requests: Requests, caller: CallerDep) -> Ack:
    """Start a workflow."""
    return await starts.start(caller, frame, requests)


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
        models=base.services[ModelNames],
    )
    services.add(workflows, starts, WorkflowTexts(workflows=workflows, model=services[OneRequest]))


FEATURE = Feature((*operations, *workflow_operations), build)
