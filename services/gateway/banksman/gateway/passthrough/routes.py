"""The passthrough endpoints: the request's bytes go to the upstream as they came, and so do its answer's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import assert_never, cast

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from banksman.contracts.errors import BadInput
from banksman.gateway.asgi.errors import refusal
from banksman.gateway.asgi.streaming import KEEP_ALIVE_S, SSE_HEADERS, Stream, kept_alive, left
from banksman.gateway.passthrough.upstreams import Answer, UnsupportedEndpoint, UpstreamGone, Upstreams
from banksman.gateway.service.auth import Keys, bearer
from banksman.gateway.settings import Dialect

UPSTREAM_ERROR = "upstream_error"
CLIENT_CLOSED = 499
"""The status of an answer that nobody is there to read."""


def passthrough_router(keys: Keys, upstreams: Upstreams) -> APIRouter:
    """The routes of the OpenAI and the Anthropic API."""
    router = APIRouter(tags=["passthrough"])

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await forward(request, "/chat/completions", "openai", keys, upstreams)

    @router.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await forward(request, "/responses", "responses", keys, upstreams)

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        return await forward(request, "/messages", "anthropic", keys, upstreams)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        return await forward(request, "/messages/count_tokens", "anthropic", keys, upstreams)

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        _check_key(request, keys)
        await upstreams.listed()
        return JSONResponse({"object": "list", "data": upstreams.models()})

    @router.get("/v1/models/{model:path}")
    async def read_model(model: str, request: Request) -> Response:
        _check_key(request, keys)
        await upstreams.listed()
        found = next((entry for entry in upstreams.models() if entry["id"] == model), None)
        if found is not None:
            return JSONResponse(found)
        message = f"The model {model[:200]!r} does not exist."
        return JSONResponse(refusal(request.url.path, 404, "model_not_found", message, field="model"), 404)

    return router


async def forward(
    request: Request, path: str, dialect: Dialect, keys: Keys, upstreams: Upstreams
) -> Response:
    """Send a request on, and its answer back as it comes."""
    here = request.url.path
    _check_key(request, keys)
    body = await request.body()
    model, streams = _asked(body)
    try:
        upstream = upstreams.choose(model, dialect)
    except UnsupportedEndpoint as error:
        code = "unsupported_endpoint_for_model"
        return JSONResponse(refusal(here, 400, code, str(error), field="model"), 400)
    opening = asyncio.create_task(upstreams.open(upstream, path, body, request.headers, dialect))
    if not await _opened(request, opening, KEEP_ALIVE_S if streams else None):
        return Response(status_code=CLIENT_CLOSED)
    if not opening.done():
        return Stream(kept_alive(_late(opening, dialect)), headers=SSE_HEADERS)
    try:
        answer = opening.result()
    except UpstreamGone as error:
        return _unreachable(here, error)
    if answer.is_event_stream:
        return Stream(kept_alive(_events(answer, dialect)), answer.status, {**answer.headers, **SSE_HEADERS})
    return Stream(answer.body, answer.status, answer.headers)


async def _opened(request: Request, opening: asyncio.Task[Answer], patience_s: float | None) -> bool:
    """Wait for an upstream's answer; False when the client left first, and the request is taken back."""
    leaving = asyncio.create_task(left(request.receive))
    try:
        await asyncio.wait((opening, leaving), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        gone = leaving.done() and not opening.done()
        if gone:
            opening.cancel()
            await asyncio.wait((opening,))
        return not gone
    except asyncio.CancelledError:
        opening.cancel()
        raise
    finally:
        leaving.cancel()
        await asyncio.wait((leaving,))


async def _late(opening: asyncio.Task[Answer], dialect: Dialect) -> AsyncGenerator[bytes]:
    """The events of an upstream that took so long that its status can no longer be passed on."""
    try:
        answer = await opening
    except UpstreamGone as error:
        yield _fault(dialect, str(error))
        return
    finally:
        opening.cancel()
    if answer.is_event_stream:
        async for piece in _events(answer, dialect):
            yield piece
        return
    refused = b"".join([piece async for piece in answer.body]).decode("utf-8", "replace")
    yield _fault(dialect, f"the upstream answered {answer.status}: {refused[:2000]}")


async def _events(answer: Answer, dialect: Dialect) -> AsyncGenerator[bytes]:
    """An event stream, passed on event by event, so that a fault can be told after a whole one."""
    rest = b""
    try:
        async for piece in answer.body:
            whole, rest = _split(rest + piece)
            if whole:
                yield whole
        if rest:
            yield rest
    except UpstreamGone as error:
        yield _fault(dialect, str(error))
    finally:
        await answer.body.aclose()


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The whole events at the head of some bytes, and the rest."""
    ends = (data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if mark in data)
    end = max(ends, default=0)
    return data[:end], data[end:]


def _fault(dialect: Dialect, message: str) -> bytes:
    match dialect:
        case "anthropic":
            body = {"type": "error", "error": {"type": "api_error", "message": message}}
            return f"event: error\ndata: {json.dumps(body)}\n\n".encode()
        case "responses":
            told = {"type": "error", "code": UPSTREAM_ERROR, "message": message, "param": None}
            return f"event: error\ndata: {json.dumps(told)}\n\n".encode()
        case "openai":
            error = {"message": message, "type": "server_error", "param": None, "code": UPSTREAM_ERROR}
            return f"data: {json.dumps({'error': error})}\n\n".encode()
        case _:
            assert_never(dialect)


def _unreachable(here: str, error: UpstreamGone) -> Response:
    status = 504 if error.timed_out else 502
    return JSONResponse(refusal(here, status, UPSTREAM_ERROR, str(error)), status)


def _check_key(request: Request, keys: Keys) -> None:
    token = bearer(request.headers.get("authorization")) or request.headers.get("x-api-key")
    keys.caller(token).check("passthrough")


def _asked(body: bytes) -> tuple[str, bool]:
    """The model that a body names, and whether it wants a stream; nothing else of it is looked at."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadInput("body", None, f"valid JSON ({error})") from error
    given = cast(dict[str, object], value) if isinstance(value, dict) else {}
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("model", None, "the name of a model")
    return model, given.get("stream") is True
