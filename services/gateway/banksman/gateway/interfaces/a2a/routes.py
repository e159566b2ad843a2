"""`POST /a2a`, the JSON-RPC binding of A2A 1.0, and the agent card."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel
from starlette.responses import JSONResponse

from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.wire import parse
from banksman.gateway.feature import Feature
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.a2a import models
from banksman.gateway.interfaces.a2a.methods import FollowedTask, Methods, PushConfigs, supports_push
from banksman.gateway.interfaces.a2a.models import RpcError
from banksman.gateway.live.followed_runs import FollowedRuns
from banksman.gateway.operation import streaming
from banksman.gateway.operation.caller import READ
from banksman.gateway.operation.declaration import BodyLimit, Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import CallerDep, provided

P = TypeVar("P", bound=BaseModel)


RPC: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object", "required": ["jsonrpc", "method"]}}},
    }
}
REPLIES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A response of JSON-RPC; a stream of them for the methods that stream",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}
FOLLOW_AGAIN = "the events cannot be followed any more; SubscribeToTask follows the task again"

public = APIRouter(tags=["a2a"], generate_unique_id_function=lambda route: route.name)
operations = Operations("a2a", right=READ)
PROTOCOL_VERSION = "1.0"
CARD_PATH = "/.well-known/agent-card.json"


@public.get(CARD_PATH)
async def read_agent_card(
    request: Request,
    keys: Annotated[Keys, provided(Keys)],
    dispatcher: Annotated[Dispatcher, provided(Dispatcher)],
) -> dict[str, Any]:
    """Return the agent card of A2A 1.0. It needs no key and contains no data of a tenant."""
    base_url = str(request.base_url).rstrip("/")
    return _agent_card(base_url, keyless=keys.keyless, push=supports_push(dispatcher))


def _agent_card(base_url: str, *, keyless: bool, push: bool) -> dict[str, Any]:
    """Return the agent card; `base_url` has no trailing slash. It names no assistant and no tool."""
    card: dict[str, Any] = {
        "name": "Banksman",
        "description": "Runs LLM agents with tools in sandboxes. Some calls wait for a decision.",
        "version": version("banksman"),
        "supportedInterfaces": [
            {"url": f"{base_url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": PROTOCOL_VERSION}
        ],
        "capabilities": {"streaming": True, "pushNotifications": push, "extendedAgentCard": False},
        "defaultInputModes": ["text/plain", "application/json", "image/*"],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": "run",
                "name": "Do a task",
                "description": "Does a task written in plain language, with the tools of an assistant. "
                "`metadata.banksman.assistant` of a message names another assistant than `default`.",
                "tags": ["agent", "tools", "files", "commands", "approval"],
            }
        ],
    }
    if not keyless:
        card["securitySchemes"] = {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card


@operations.add(
    "a2a.call",
    "POST /a2a",
    not_over_nats="A2A is a protocol over HTTP",
    body=BodyLimit.LARGE,
    response_class=Response,
    responses=REPLIES,
    openapi_extra=RPC,
)
async def call_a2a(
    request: Request,
    followed: Annotated[FollowedRuns, provided(FollowedRuns)],
    caller: CallerDep,
    a2a_version: Annotated[str, Header(description="1.0, which is also assumed without it.")] = "1.0",
) -> Response:
    """Call a method of A2A 1.0, whose tasks are runs (R26).

    A client that disconnects cancels nothing. `SubscribeToTask` follows a task again, `CancelTask` ends it.
    """
    rpc: models.RpcRequest | None = None
    try:
        rpc = _parsed(await request.body())
        if a2a_version.split(".")[0] != "1":
            raise RpcError(models.VERSION_NOT_SUPPORTED, f"version {a2a_version!r} is not supported: use 1.0")
        return await _call(rpc, Methods(followed, caller), request)
    except BanksmanError as error:
        return _json(rpc, error=models.rpc_error(error).body())
    except RpcError as error:
        return _json(rpc, error=error.body())


def _parsed(body: bytes) -> models.RpcRequest:
    try:
        return parse(models.RpcRequest, body)
    except BadInput as error:
        raise RpcError(
            models.PARSE_ERROR if error.field == "body" else models.INVALID_REQUEST, error.public
        ) from error


async def _call(rpc: models.RpcRequest, methods: Methods, request: Request) -> Response:
    configs = PushConfigs(methods.dispatcher, methods.caller)
    match rpc.method:
        case "SendMessage":
            return await _send(rpc, methods, request)
        case "SendStreamingMessage":
            return _stream(rpc, await _sent(_params(models.SendMessage, rpc), methods))
        case "SubscribeToTask":
            return _stream(rpc, await methods.subscribe(_params(models.NamedTask, rpc)))
        case "GetTask":
            named = _params(models.NamedTask, rpc)
            return _json(rpc, result=await methods.get(named.id, named.history_length))
        case "ListTasks":
            return _json(rpc, result=await methods.list(_params(models.ListTasks, rpc)))
        case "CancelTask":
            return _json(rpc, result=await methods.cancel(_params(models.NamedTask, rpc)))
        case "GetExtendedAgentCard":
            raise RpcError(models.NO_EXTENDED_CARD, "there is one agent card")
        case "CreateTaskPushNotificationConfig":
            config = _params(models.PushConfig, rpc)
            return _json(rpc, result=await configs.create(config.task_id, config))
        case "GetTaskPushNotificationConfig":
            return _json(rpc, result=await configs.get(_params(models.NamedConfig, rpc)))
        case "ListTaskPushNotificationConfigs":
            return _json(rpc, result=await configs.list(_params(models.ListConfigs, rpc)))
        case "DeleteTaskPushNotificationConfig":
            return _json(rpc, result=await configs.delete(_params(models.NamedConfig, rpc)))
        case method:
            older = " (A2A 0.3 is not supported: use 1.0)" if "/" in method else ""
            raise RpcError(models.METHOD_NOT_FOUND, f"the method {method!r} is unknown{older}")


async def _send(rpc: models.RpcRequest, methods: Methods, request: Request) -> Response:
    params = _params(models.SendMessage, rpc)
    followed = await _sent(params, methods)
    try:
        if not params.configuration.return_immediately:
            if await streaming.unless_disconnected(request.receive, _finished(followed)) is None:
                return Response(status_code=streaming.CLIENT_CLOSED)
    finally:
        if followed.run is not None:
            await followed.run.feed.close()
    found = await methods.get(followed.updates.run_id, params.configuration.history_length)
    return _json(rpc, result={"task": found})


async def _sent(params: models.SendMessage, methods: Methods) -> FollowedTask:
    followed = await methods.send(params.message)
    if params.configuration.push is not None:
        try:
            configs = PushConfigs(methods.dispatcher, methods.caller)
            await configs.create(followed.first["id"], params.configuration.push)
        except BaseException:
            if followed.run is not None:
                await followed.run.feed.close()
            raise
    return followed


async def _finished(followed: FollowedTask) -> bool:
    async for _ in followed.results():
        pass
    return True


def _stream(rpc: models.RpcRequest, followed: FollowedTask) -> streaming.StreamedResponse:
    on_end = None if followed.run is None else followed.run.feed.close
    return streaming.StreamedResponse(
        streaming.kept_alive(_encoded(rpc, followed)), headers=streaming.SSE_HEADERS, on_end=on_end
    )


async def _encoded(rpc: models.RpcRequest, followed: FollowedTask) -> AsyncIterator[bytes]:
    async for result in followed.results():
        yield streaming.sse_event(_response(rpc, result=result))
    if followed.run is not None and not followed.updates.complete:
        yield streaming.sse_event(_response(rpc, error=RpcError(models.INTERNAL, FOLLOW_AGAIN).body()))


def _json(rpc: models.RpcRequest | None, **body: Any) -> Response:
    return JSONResponse(_response(rpc, **body))


def _response(rpc: models.RpcRequest | None, **body: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None if rpc is None else rpc.id, **body}


def _params(model: type[P], rpc: models.RpcRequest) -> P:
    return parse(model, rpc.params, what="params")


FEATURE = Feature(operations, routes=tuple(public.routes))
