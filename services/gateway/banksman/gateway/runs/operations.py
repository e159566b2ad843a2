"""Runs: start by a message, cancel, read, wait."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import RunQueue
from banksman.bus.storage.live import LiveHub
from banksman.contracts.frames import Ack, ChatSend, Detail, RunCancel
from banksman.contracts.registry import CallPage
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import ModelNames
from banksman.gateway.assistants.tenant_store import AssistantStore
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.identity.instructions import Instructions
from banksman.gateway.operation.caller import CHAT
from banksman.gateway.operation.declaration import CONFLICT, EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, RequestId, StrictBody, provided
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs import bodies
from banksman.gateway.runs.idempotency import RequestRecord, StoredRequests
from banksman.gateway.runs.one_request import OneRequest
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.starts import FirstMessage, RunCancels, RunsOverHttp, RunStarts
from banksman.quotas.stored import SharedBucket
from banksman.runs.runners.placement import Placements
from banksman.runs.schema_checks.checker import SchemaChecker

MAX_WAIT_S = 60
MAX_CALLS = 50
"""Calls in one page. A call has up to 256 KiB, usually a few KiB."""

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the outcome.")]
OrParked = Annotated[bool, Query(description="Whether the wait also ends when the run waits for a user.")]
Location = {"location": {"description": "The run.", "schema": {"type": "string"}}}
Started = bodies.EndedRun | bodies.Run | bodies.AcceptedRun
STARTED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": bodies.EndedRun,
        "description": "The outcome, within `wait_s`; or with `Accept: text/event-stream` the run's events",
        "content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}},
        "headers": Location,
    },
    202: {"description": "The run is stored", "headers": Location},
}
"""The responses to a start."""
STARTS: dict[str, Any] = {"status": 202, "response_model": Started, "responses": STARTED, "starts_work": True}
FRAME = "the frame `chat.send` starts runs; clients follow them by `replay`, or wait for them by `run.read`"
NEW_FRAME = f"`conversation.create` creates the conversation; {FRAME}"

Service = Annotated[Runs, provided(Runs)]
Cancels = Annotated[RunCancels, provided(RunCancels)]
HttpStarts = Annotated[RunsOverHttp, provided(RunsOverHttp)]
Requests = Annotated[StoredRequests, provided(StoredRequests)]

operations = Operations("runs")


@operations.on_frame(
    ChatSend, "conversation_id", right=CHAT, errors=(MISSING, CONFLICT, EARLY), starts_work=True
)
async def send_message(
    frame: ChatSend, starts: Annotated[RunStarts, provided(RunStarts)], requests: Requests, caller: CallerDep
) -> Ack:
    """Send a message of the user, which starts a run or steers the open one."""
    return await starts.send(caller, frame, requests)


@operations.on_frame(RunCancel, "conversation_id", right=CHAT)
async def cancel(frame: RunCancel, cancels: Cancels, caller: CallerDep) -> Ack:
    """Cancel a run."""
    return await cancels.cancel(caller, frame)


@operations.add(
    "chat.send", "POST /context/conversations/{conversation_id}/runs", not_over_nats=FRAME, **STARTS
)
async def start_run(
    conversation_id: str,
    body: StrictBody[bodies.NewRun],
    request: Request,
    response: Response,
    starts: HttpStarts,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
    detail: Detail = "final",
) -> bodies.AcceptedRun | bodies.Run | StreamedResponse:
    """Start a run. A client that disconnects from the event stream cancels the run that it started."""
    frame = ChatSend(type="chat.send", id=request_id, conversation_id=conversation_id, **dict(body))
    return await starts.start(caller, request, response, frame, wait_s, detail)


@operations.add("chat.new", "POST /v1/chat", not_over_nats=NEW_FRAME, **STARTS)
async def chat(
    body: StrictBody[bodies.NewChat],
    request: Request,
    response: Response,
    starts: HttpStarts,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
    detail: Detail = "final",
) -> bodies.AcceptedRun | bodies.Run | StreamedResponse:
    """Start a run in a new conversation, as `POST /context/conversations/{conversation_id}/runs` does."""
    message = FirstMessage(request_id, body)
    return await starts.start(caller, request, response, message, wait_s, detail)


@operations.add("chat.complete", "POST /context/chat", not_over_nats=NEW_FRAME, **STARTS)
async def context_chat(
    body: StrictBody[bodies.ContextChat],
    request: Request,
    response: Response,
    starts: HttpStarts,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = MAX_WAIT_S,
    detail: Detail = "final",
) -> bodies.AcceptedRun | bodies.Run | StreamedResponse:
    """Start a run in a new conversation or in `conversation_id`, and wait for its outcome (R26).

    The response is 202 with the run's state if it needs a decision, or has not ended after `wait_s`.
    """
    if body.conversation_id is None:
        message = FirstMessage(request_id, body)
    else:
        message = body.sent(request_id, body.conversation_id)
    return await starts.start(caller, request, response, message, wait_s, detail, or_parked=True)


@operations.add(
    "conversation.compact",
    "POST /context/conversations/{conversation_id}/compact",
    status=202,
    starts_work=True,
)
async def compact_conversation(
    conversation_id: str,
    starts: Annotated[RunStarts, provided(RunStarts)],
    requests: Requests,
    caller: CallerDep,
    request_id: RequestId,
) -> bodies.AcceptedRun:
    """Replace the older messages by a summary for the model, after the runs that were started before.

    The outcome of the run states the size before and after, or that there is nothing to compact.
    """
    fields = {"type": "chat.send", "id": request_id, "conversation_id": conversation_id}
    frame = ChatSend.model_validate({**fields, "content": "Compact the conversation."})
    return bodies.AcceptedRun.of(await starts.send(caller, frame, requests, compact=True))


@operations.add("run.list", "GET /context/conversations/{conversation_id}/runs")
async def list_runs(conversation_id: str, runs: Service, caller: CallerDep) -> Listing[bodies.Run]:
    """List the runs of a conversation in the order of their requests, without their outcomes."""
    found = await runs.of_conversation(caller.tenant, conversation_id)
    return Listing[bodies.Run](items=tuple(bodies.run_body(run) for run in found))


@operations.add("run.read", "GET /context/runs/{run_id}", response_model=bodies.EndedRun | bodies.Run)
async def read_run(
    run_id: str, runs: Service, caller: CallerDep, wait_s: Wait = 0, or_parked: OrParked = False
) -> bodies.EndedRun | bodies.Run:
    """Read a run, once it has ended or after `wait_s`."""
    if wait_s:
        return bodies.run_body(await runs.wait(caller.tenant, run_id, wait_s, or_parked=or_parked))
    return bodies.run_body(await runs.get(caller.tenant, run_id))


@operations.add("run.calls", "GET /context/runs/{run_id}/tool-calls")
async def list_calls(
    run_id: str,
    runs: Service,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, description="Calls to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_CALLS)] = MAX_CALLS,
) -> CallPage:
    """List all calls of a run that have a result, with complete parameters and results (R102).

    The `tool_calls` of an outcome are the same if they fit in one message.
    """
    calls = await runs.calls(caller.tenant, run_id)
    page = calls[after : after + limit]
    end = after + len(page)
    return CallPage(items=tuple(page), next=end if end < len(calls) else None, total=len(calls))


@operations.add(
    "run.cancel",
    "POST /context/runs/{run_id}/cancel",
    status=202,
    not_over_nats="the frame `run.cancel` has the same fields",
)
async def cancel_run(
    run_id: str,
    cancels: Cancels,
    caller: CallerDep,
    request_id: RequestId,
    body: StrictBody[bodies.CancelBody] = bodies.CancelBody(),  # noqa: B008  # frozen
) -> bodies.AcceptedRequest:
    """Cancel a run."""
    frame = RunCancel(type="run.cancel", id=request_id, run_id=run_id, reason=body.reason)
    return bodies.AcceptedRequest.of(await cancels.cancel(caller, frame))


async def build_queue(base: Foundation) -> None:
    placements = Placements(base.bus, base.clock, wait_s=base.settings.workspaces.wait_s)
    bucket = SharedBucket(base.bus, IDEMPOTENCY, RequestRecord, "accepted requests")
    await base.stack.enter_async_context(placements)
    base.services.add(RunQueue(base.bus), StoredRequests(bucket), placements)


async def build(base: Foundation) -> None:
    services, names = base.services, base.services[ModelNames]
    index, queue, backlog, views = (
        services[Conversations],
        services[RunQueue],
        services[Backlog],
        services[Views],
    )
    assistants, governed = services[AssistantStore], services[GovernedAssistants]
    runs = Runs(base.bus, services[LiveHub], views, index)
    services.add(
        runs,
        OneRequest(runs, index, assistants, queue, backlog, base.clock, names),
        RunStarts(
            views,
            index,
            services[CreatedConversations],
            governed,
            queue,
            backlog,
            names,
            services[Instructions],
            services[SchemaChecker],
        ),
        RunCancels(runs, queue, backlog),
    )


QUEUE = Feature(Operations("runs"), build_queue)
FEATURE = Feature(operations, build)
