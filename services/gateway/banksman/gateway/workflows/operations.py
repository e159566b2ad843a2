"""The start of workflows, by name or by a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Response
from pydantic import Field

from banksman.bus.publish import RunQueue
from banksman.contracts import registry
from banksman.contracts.assistants import Assistant, ConversationSettings, RunOverrides, RunSettings
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import Ack, WorkflowStart
from banksman.contracts.ids import check_token, is_token
from banksman.contracts.messages import PERSON, Provenance
from banksman.contracts.wire import JsonObject, JsonValue, Token
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import ModelNames, resolve_settings
from banksman.gateway.conversations.conversations import Conversations, new_record
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import CHAT, Caller
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestBody, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.bodies import AcceptedRun, EndedRun, Run
from banksman.gateway.runs.idempotency import RequestIds, StoredRequests, ids_once
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.operations import Location, Started, Wait
from banksman.gateway.runs.starts import RunsOverHttp
from banksman.gateway.workflows.workflows import Workflows
from banksman.gateway.workflows.workflows import operations as workflow_operations
from banksman.runs.ports import Clock
from banksman.runtime.tracing import current, valid

DEFAULT_ASSISTANT = "default"
"""The assistant that every tenant has."""
_NO_SETTINGS = ConversationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStarts:
    workflows: Workflows
    conversations: Conversations
    assistants: GovernedAssistants
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    models: ModelNames

    async def start(self, caller: Caller, request: WorkflowStart, requests: RequestIds) -> Ack:
        """Store the start of a workflow in a conversation of its own. Raises as `Dispatcher.handle`."""
        async with self.backlog.starts.place(caller.tenant):
            return await self._start(caller, request, requests)

    async def _start(self, caller: Caller, request: WorkflowStart, requests: RequestIds) -> Ack:
        assistant, agent = await self._settings(caller, request)
        checked = await self.workflows.check(caller.tenant, request)
        settings_bytes = 0 if agent is None else len(agent.model_dump_json())
        await self.backlog.check_workflow(caller.tenant, len(str(request.parameters)) + settings_bytes)
        conversation_id = requests.new("c")
        fresh = {
            "conversation_id": conversation_id,
            "run_id": requests.new_run(conversation_id),
            "message_id": requests.new("m"),
        }
        ids = await ids_once(requests, caller, request, fresh)
        work = _work(checked, request, caller, ids, assistant, agent)
        title = checked.workflow.title or checked.workflow.name
        record = new_record(
            work.conversation_id, title, DEFAULT_ASSISTANT, _NO_SETTINGS, by=caller.user, now=self.clock.now()
        )
        if request.conversation_id is not None:
            # Its form, its agent runs and its outcome may repeat what was said there.
            await self.conversations.limited.inherit(
                caller.tenant, work.conversation_id, request.conversation_id
            )
        await self.conversations.create(caller.tenant, record)
        await self.queue.start_workflow(work)
        return Ack(
            reply_to=request.id,
            conversation_id=work.conversation_id,
            run_id=work.run_id,
            message_id=work.message_id,
        )

    async def _settings(self, caller: Caller, request: WorkflowStart) -> tuple[Assistant, RunSettings | None]:
        """Return the assistant whose policy applies to a workflow's calls, and settings of its agent runs."""
        name, settings = DEFAULT_ASSISTANT, _NO_SETTINGS
        if request.conversation_id is not None:
            record = await self.conversations.get(caller.tenant, request.conversation_id)
            name, settings = record.assistant, record.settings
        assistant = await self.assistants.in_use(caller.tenant, name)
        try:
            agent = resolve_settings(assistant, settings, RunOverrides(), {}, self.models.of(caller.tenant))
        except BadInput:
            # No model is configured, which only a workflow with agent runs needs.
            agent = None
        return assistant, agent


def _work(
    checked: registry.WorkflowChecked,
    request: WorkflowStart,
    caller: Caller,
    ids: Mapping[str, str],
    assistant: Assistant,
    agent: RunSettings | None,
) -> registry.StartWorkflow:
    return registry.StartWorkflow(
        tenant=caller.tenant,
        workflow=checked.workflow.name,
        conversation_id=ids["conversation_id"],
        run_id=ids["run_id"],
        message_id=ids["message_id"],
        parameters=checked.parameters,
        user=caller.user,
        in_conversation=request.conversation_id,
        traceparent=valid(request.traceparent) or current(),
        tools=registry.ToolPolicy(
            rules=assistant.approval_policy,
            on_reject=assistant.tools.on_reject,
            approvals=assistant.approvals,
            tools=assistant.tools,
        ),
        agent=agent,
        provenance=_provenance(checked, request),
    )


def _provenance(checked: registry.WorkflowChecked, request: WorkflowStart) -> Provenance:
    """Return that the workflow wrote its message, of which a person typed the values of the form."""
    if request.provenance.author != "person":
        return request.provenance.model_copy(update={"author": "workflow"})
    forms = checked.workflow.parameters_schema.get("properties")
    secrets = {
        name
        for name, form in (forms.items() if isinstance(forms, dict) else ())
        if isinstance(form, dict) and form.get("x-hint") == "secret"
    }
    shown: JsonObject = {name: one for name, one in request.parameters.items() if name not in secrets}
    return Provenance.partly("workflow", _texts(shown))


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


MAX_WORKFLOWS = 100
MAX_PROMPT_CHARS = 60_000

INSTRUCTIONS = """\
Choose the workflow that the user wants to start, and fill in its form.
Reply with one JSON object and nothing else: {"workflow": "<name>", "parameters": {...}}
Leave out every parameter that the user did not state. If no workflow fits, reply {"workflow": null}.

Workflows:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTexts:
    """Parses texts of users. It starts no workflow: the user confirms the filled form."""

    workflows: Workflows
    model: OneRequest

    async def parse(self, caller: Caller, text: str, *, model: str | None = None) -> registry.ParsedWorkflow:
        """Return the form that a text fills, with its missing and invalid fields.

        The text is a command (`/name parameter=value`), or plain language, which takes one request to
        `model` (None: that of the default assistant). Raises `BadInput` if no workflow fits.
        """
        if text.lstrip().startswith("/"):
            return await self.workflows.parse(registry.ParseWorkflow(tenant=caller.tenant, text=text))
        listed = (await self.workflows.list_workflows(caller)).items
        chosen = await self._chosen(caller, text, model, listed[:MAX_WORKFLOWS])
        name, parameters = chosen.get("workflow"), chosen.get("parameters")
        if not isinstance(name, str) or name not in {one.name for one in listed}:
            raise BadInput("text", text[:80], "a text that names what a registered workflow does")
        given = cast(dict[str, Any], parameters) if isinstance(parameters, dict) else {}
        request = registry.ParseWorkflow(tenant=caller.tenant, workflow=name, parameters=given)
        return (await self.workflows.parse(request)).model_copy(update={"source": "language"})

    async def _chosen(
        self, caller: Caller, text: str, model: str | None, listed: tuple[registry.WorkflowDefinition, ...]
    ) -> dict[str, Any]:
        reply = await self.model.reply(caller, text, _prompt(listed), title="Start a workflow", model=model)
        return _object_in(reply)


def _prompt(listed: tuple[registry.WorkflowDefinition, ...]) -> str:
    lines = [
        json.dumps(
            {"name": one.name, "description": one.description, "parameters": one.parameters_schema},
            ensure_ascii=False,
        )
        for one in listed
        if is_token(one.name)
    ]
    return (INSTRUCTIONS + "\n".join(lines))[:MAX_PROMPT_CHARS]


def _object_in(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


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
) -> registry.ParsedWorkflow:
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
