"""Runs: start, read, wait, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from banksman.contracts.frames import ChatSend, Detail, RunCancel
from banksman.contracts.tool_views import CallPage
from banksman.gateway.asgi.dependencies import CallerDep, RequestId, ServiceDep
from banksman.gateway.asgi.routing import StrictBody, router
from banksman.gateway.asgi.streaming import Stream
from banksman.gateway.http.conversations import creation, creation_id
from banksman.gateway.http.models import (
    AcceptedRequest,
    AcceptedRun,
    CancelBody,
    ContextChat,
    NewChat,
    NewRun,
)
from banksman.gateway.http.run_stream import run_stream
from banksman.gateway.service import resources
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.bodies import EndedRun, Listing, Run, run_body
from banksman.gateway.service.gateway import Gateway

MAX_WAIT_S = 60
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the outcome.")]
Location = {"location": {"description": "The run.", "schema": {"type": "string"}}}

STARTED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": EndedRun,
        "description": "The outcome, within `wait_s`; or with `Accept: text/event-stream` the run's events",
        "content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}},
        "headers": Location,
    },
    202: {"description": "The run is stored", "headers": Location},
}
"""The responses to a start."""

routes = router("runs")


@routes.post(
    "/context/conversations/{conversation_id}/runs",
    status_code=202,
    response_model=EndedRun | Run | AcceptedRun,
    responses=STARTED,
)
async def start_run(
    conversation_id: str,
    body: StrictBody[NewRun],
    request: Request,
    response: Response,
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
    detail: Detail = "final",
) -> AcceptedRun | Run | Stream:
    """Start a run. A client that disconnects from the event stream cancels the run that it started."""
    frame = ChatSend(type="chat.send", id=request_id, conversation_id=conversation_id, **dict(body))
    return await _start(gateway, caller, request, response, frame, wait_s, detail)


@routes.post("/v1/chat", status_code=202, response_model=EndedRun | Run | AcceptedRun, responses=STARTED)
async def chat(
    body: StrictBody[NewChat],
    request: Request,
    response: Response,
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = 0,
    detail: Detail = "final",
) -> AcceptedRun | Run | Stream:
    """Start a run in a new conversation, as `POST /context/conversations/{conversation_id}/runs` does."""
    frame = await _first_message(gateway, caller, request_id, body)
    return await _start(gateway, caller, request, response, frame, wait_s, detail)


@routes.post("/context/chat", status_code=202, response_model=EndedRun | Run | AcceptedRun, responses=STARTED)
async def context_chat(
    body: StrictBody[ContextChat],
    request: Request,
    response: Response,
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    wait_s: Wait = MAX_WAIT_S,
    detail: Detail = "final",
) -> AcceptedRun | Run | Stream:
    """Start a run in a new conversation or in `conversation_id`, and wait for its outcome (R26).

    The response is 202 with the run's state if it needs a decision, or has not ended after `wait_s`.
    """
    if body.conversation_id is None:
        frame = await _first_message(gateway, caller, request_id, body)
    else:
        frame = _message(request_id, body.conversation_id, body)
    return await _start(gateway, caller, request, response, frame, wait_s, detail, or_parked=True)


@routes.get("/context/conversations/{conversation_id}/runs")
async def list_runs(conversation_id: str, gateway: ServiceDep, caller: CallerDep) -> Listing[Run]:
    """List the runs of a conversation in the order of their requests, without their outcomes."""
    return await resources.list_runs(gateway, caller.tenant, conversation_id)


@routes.get("/context/runs/{run_id}", response_model=EndedRun | Run)
async def read_run(run_id: str, gateway: ServiceDep, caller: CallerDep, wait_s: Wait = 0) -> Run:
    """Read a run, once it has ended or after `wait_s`."""
    return await resources.read_run(gateway, caller.tenant, run_id, wait_s)


@routes.get("/context/runs/{run_id}/tool-calls")
async def list_calls(
    run_id: str,
    gateway: ServiceDep,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, description="Calls to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=resources.MAX_CALLS)] = resources.MAX_CALLS,
) -> CallPage:
    """List all calls of a run that have a result, with complete parameters and results (R102).

    The `tool_calls` of an outcome are the same if they fit in one message.
    """
    return await resources.list_calls(gateway, caller.tenant, run_id, after=after, limit=limit)


@routes.post("/context/runs/{run_id}/cancel", status_code=202)
async def cancel_run(
    run_id: str,
    gateway: ServiceDep,
    caller: CallerDep,
    request_id: RequestId,
    body: StrictBody[CancelBody] = CancelBody(),  # noqa: B008  # frozen
) -> AcceptedRequest:
    """Cancel a run."""
    frame = RunCancel(type="run.cancel", id=request_id, run_id=run_id, reason=body.reason)
    return AcceptedRequest.of(await gateway.requests.handle(caller, frame))


async def _first_message(gateway: Gateway, caller: Caller, request_id: str, body: NewChat) -> ChatSend:
    created = await gateway.requests.handle(
        caller, creation(creation_id(request_id), body), title_from=body.content
    )
    return _message(request_id, created.conversation_id or "", body)


def _message(request_id: str, conversation_id: str, body: NewChat) -> ChatSend:
    return ChatSend(
        type="chat.send",
        id=request_id,
        conversation_id=conversation_id,
        content=body.content,
        overrides=body.overrides,
        variables=body.variables,
    )


async def _start(
    gateway: Gateway,
    caller: Caller,
    request: Request,
    response: Response,
    frame: ChatSend,
    wait_s: float,
    detail: Detail,
    *,
    or_parked: bool = False,
) -> AcceptedRun | Run | Stream:
    if "text/event-stream" in request.headers.get("accept", ""):
        return await run_stream(gateway, caller, frame, detail)
    accepted = AcceptedRun.of(await gateway.requests.handle(caller, frame))
    return await outcome(gateway, caller, response, accepted, wait_s, or_parked=or_parked)


async def outcome(
    gateway: Gateway,
    caller: Caller,
    response: Response,
    accepted: AcceptedRun,
    wait_s: float,
    *,
    or_parked: bool = False,
) -> AcceptedRun | Run:
    """Return the body for a started run: its ids, or after up to `wait_s` its outcome with status 200."""
    response.headers["location"] = f"/context/runs/{accepted.run_id}"
    if not wait_s:
        return accepted
    found = await gateway.runs.wait(caller.tenant, accepted.run_id, wait_s, or_parked=or_parked, started=True)
    run = run_body(found)
    if isinstance(run, EndedRun):
        response.status_code = 200
    return run
