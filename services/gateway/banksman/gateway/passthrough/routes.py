"""The passthrough endpoints: forward the bytes of request and response unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any, assert_never, cast

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel
from starlette.responses import JSONResponse

from banksman.contracts.errors import BadInput
from banksman.gateway.asgi.dependencies import API_KEY, BEARER, check_passthrough_key
from banksman.gateway.asgi.errors import ERRORS, ErrorBody, error_body
from banksman.gateway.asgi.streaming import KEEP_ALIVE_S, SSE_HEADERS, Stream, disconnected, kept_alive
from banksman.gateway.passthrough.upstreams import (
    UnsupportedEndpoint,
    UpstreamResponse,
    Upstreams,
    UpstreamUnavailable,
)
from banksman.gateway.settings import Dialect

UPSTREAM_ERROR = "upstream_error"
CLIENT_CLOSED = 499
"""Status of a response to a client that has disconnected."""

JSON_OBJECT: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
FORWARDED: dict[str, Any] = {
    "openapi_extra": {"requestBody": {"required": True, "content": JSON_OBJECT}},
    "response_class": Response,
    "responses": {
        200: {
            "description": "The upstream's response, unchanged",
            "content": {**JSON_OBJECT, "text/event-stream": {"schema": {"type": "string"}}},
        },
        502: {"description": "The upstream cannot be reached", "content": JSON_OBJECT},
        504: {"description": "The upstream does not respond", "content": JSON_OBJECT},
    },
}
"""OpenAPI of a forwarded endpoint. Bodies are never parsed into models: their bytes are forwarded."""


class Model(BaseModel):
    """A model of an upstream, in OpenAI's format."""

    id: str
    object: str = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models of all upstreams, in OpenAI's format."""

    object: str = "list"
    data: list[Model]


async def upstreams_of(request: Request) -> Upstreams:
    """Return the upstreams of the application."""
    return request.app.state.upstreams


UpstreamsDep = Annotated[Upstreams, Depends(upstreams_of)]

routes = APIRouter(
    tags=["passthrough"],
    dependencies=[Depends(BEARER), Depends(API_KEY), Depends(check_passthrough_key)],
    responses={
        400: ERRORS[400],
        401: ERRORS[401],
        "default": {
            "model": ErrorBody,
            "description": "Any other error, in the format of the API; an upstream's own error unchanged",
        },
    },
)


@routes.post("/v1/chat/completions", **FORWARDED)
async def chat_completions(request: Request, upstreams: UpstreamsDep) -> Response:
    """OpenAI's Chat Completions API."""
    return await forward(request, "/chat/completions", "openai", upstreams)


@routes.post("/v1/responses", **FORWARDED)
async def responses(request: Request, upstreams: UpstreamsDep) -> Response:
    """OpenAI's Responses API."""
    return await forward(request, "/responses", "responses", upstreams)


@routes.post("/v1/messages", **FORWARDED)
async def messages(request: Request, upstreams: UpstreamsDep) -> Response:
    """Anthropic's Messages API."""
    return await forward(request, "/messages", "anthropic", upstreams)


@routes.post("/v1/messages/count_tokens", **FORWARDED)
async def count_tokens(request: Request, upstreams: UpstreamsDep) -> Response:
    """Anthropic's token counting API."""
    return await forward(request, "/messages/count_tokens", "anthropic", upstreams)


@routes.get("/v1/models", response_model=ModelList)
async def list_models(upstreams: UpstreamsDep) -> Response:
    """List the models of all upstreams."""
    await upstreams.listed()
    return JSONResponse({"object": "list", "data": upstreams.models()})


@routes.get(
    "/v1/models/{model:path}",
    response_model=Model,
    responses={404: {"model": ErrorBody, "description": "No such model"}},
)
async def read_model(model: str, request: Request, upstreams: UpstreamsDep) -> Response:
    """Read a model."""
    await upstreams.listed()
    found = next((entry for entry in upstreams.models() if entry["id"] == model), None)
    if found is not None:
        return JSONResponse(found)
    message = f"The model {model[:200]!r} does not exist."
    return JSONResponse(error_body(request.url.path, 404, "model_not_found", message, field="model"), 404)


async def forward(request: Request, path: str, dialect: Dialect, upstreams: Upstreams) -> Response:
    """Forward a request to the upstream of its model, and return the response as it arrives."""
    here = request.url.path
    body = await request.body()
    model, streams = _model_of(body)
    try:
        upstream = upstreams.choose(model, dialect)
    except UnsupportedEndpoint as error:
        code = "unsupported_endpoint_for_model"
        return JSONResponse(error_body(here, 400, code, str(error), field="model"), 400)
    opening = asyncio.create_task(upstreams.open(upstream, path, body, request.headers, dialect))
    if not await _opened(request, opening, KEEP_ALIVE_S if streams else None):
        return Response(status_code=CLIENT_CLOSED)
    if not opening.done():
        return Stream(kept_alive(_late_events(opening, dialect)), headers=SSE_HEADERS)
    try:
        response = opening.result()
    except UpstreamUnavailable as error:
        status = 504 if error.timed_out else 502
        return JSONResponse(error_body(here, status, UPSTREAM_ERROR, str(error)), status)
    if response.is_event_stream:
        headers = {**response.headers, **SSE_HEADERS}
        return Stream(kept_alive(_events(response, dialect)), response.status, headers)
    return Stream(response.body, response.status, response.headers)


async def _opened(
    request: Request, opening: asyncio.Task[UpstreamResponse], patience_s: float | None
) -> bool:
    """Wait up to `patience_s` for an upstream's response.

    Returns False if the client disconnects first; the upstream's request is then cancelled.
    """
    leaving = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((opening, leaving), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        client_left = leaving.done() and not opening.done()
        if client_left:
            opening.cancel()
            await asyncio.wait((opening,))
        return not client_left
    except asyncio.CancelledError:
        opening.cancel()
        raise
    finally:
        leaving.cancel()
        await asyncio.wait((leaving,))


async def _late_events(opening: asyncio.Task[UpstreamResponse], dialect: Dialect) -> AsyncGenerator[bytes]:
    """Yield the events of a slow upstream. The status is sent already: its errors become error events."""
    try:
        response = await opening
    except UpstreamUnavailable as error:
        yield _error_event(dialect, str(error))
        return
    finally:
        opening.cancel()
    if response.is_event_stream:
        async for piece in _events(response, dialect):
            yield piece
        return
    body = b"".join([piece async for piece in response.body]).decode("utf-8", "replace")
    yield _error_event(dialect, f"the upstream responded with {response.status}: {body[:2000]}")


async def _events(response: UpstreamResponse, dialect: Dialect) -> AsyncGenerator[bytes]:
    """Yield an event stream in complete events, so that an error event never follows a partial one."""
    rest = b""
    try:
        async for piece in response.body:
            complete, rest = _split(rest + piece)
            if complete:
                yield complete
        if rest:
            yield rest
    except UpstreamUnavailable as error:
        yield _error_event(dialect, str(error))
    finally:
        await response.body.aclose()


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return the complete events at the start of `data`, and the rest."""
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if mark in data)
    end = max(ends, default=0)
    return data[:end], data[end:]


def _error_event(dialect: Dialect, message: str) -> bytes:
    match dialect:
        case "anthropic":
            body = {"type": "error", "error": {"type": "api_error", "message": message}}
            return f"event: error\ndata: {json.dumps(body)}\n\n".encode()
        case "responses":
            event = {"type": "error", "code": UPSTREAM_ERROR, "message": message, "param": None}
            return f"event: error\ndata: {json.dumps(event)}\n\n".encode()
        case "openai":
            # Without `[DONE]`: openai-py takes a stream that ends with it for a success.
            error = {"message": message, "type": "server_error", "param": None, "code": UPSTREAM_ERROR}
            return f"data: {json.dumps({'error': error})}\n\n".encode()
        case _:
            assert_never(dialect)


def _model_of(body: bytes) -> tuple[str, bool]:
    """Return the model that a body names, and whether it requests a stream; no other field is read."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadInput("body", None, f"valid JSON ({error})") from error
    given = cast(dict[str, object], value) if isinstance(value, dict) else {}
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("model", None, "the name of a model")
    return model, given.get("stream") is True
