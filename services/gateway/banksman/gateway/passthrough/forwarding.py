"""Forward one request to an upstream, and its response as it arrives."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import cast

from fastapi import Request, Response
from starlette.responses import JSONResponse

from banksman.contracts.errors import BadInput
from banksman.gateway.asgi.errors import error_body
from banksman.gateway.asgi.streaming import KEEP_ALIVE_S, SSE_HEADERS, Cut, Stream, disconnected, kept_alive
from banksman.gateway.passthrough.normaliser import ChatNormaliser, normalised_error
from banksman.gateway.passthrough.sse import (
    EventReader,
    UnfinishedStream,
    error_event,
    refusal_event,
    unchanged,
)
from banksman.gateway.passthrough.upstreams import (
    UnknownModel,
    UnsupportedEndpoint,
    UpstreamResponse,
    Upstreams,
    UpstreamUnavailable,
)
from banksman.gateway.settings import Dialect

logger = logging.getLogger(__name__)

UPSTREAM_ERROR = "upstream_error"
CLIENT_CLOSED = 499
"""Status of a response to a client that has disconnected."""


async def forward(request: Request, path: str, dialect: Dialect, upstreams: Upstreams) -> Response:
    """Forward a request to the upstream of its model, and return the response as it arrives."""
    here = request.url.path
    body = await request.body()
    model, streams = _model_of(body)
    try:
        candidates = upstreams.candidates(model, dialect)
    except UnknownModel as error:
        return JSONResponse(error_body(here, 404, "model_not_found", str(error), field="model"), 404)
    except UnsupportedEndpoint as error:
        code = "unsupported_endpoint_for_model"
        return JSONResponse(error_body(here, 400, code, str(error), field="model"), 400)
    opening = upstreams.open(candidates, path, request.url.query, body, request.headers, dialect)
    if not await _opened(request, opening, KEEP_ALIVE_S if streams else None):
        return Response(status_code=CLIENT_CLOSED)
    if not opening.done():
        return Stream(kept_alive(_late_events(opening, dialect, model)), headers=SSE_HEADERS)
    try:
        response = opening.result()
    except UpstreamUnavailable as error:
        headers = {"retry-after": "1"} if error.status == 503 else None
        return JSONResponse(error_body(here, error.status, UPSTREAM_ERROR, str(error)), error.status, headers)
    if response.is_event_stream:
        headers = {**response.headers, **SSE_HEADERS}
        return Stream(kept_alive(_events(response, dialect, model)), response.status, headers)
    return Stream(_body(response, dialect), response.status, response.headers)


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


async def _late_events(
    opening: asyncio.Task[UpstreamResponse], dialect: Dialect, model: str
) -> AsyncGenerator[bytes]:
    """Yield the events of a slow upstream. The status is sent already: its errors become error events."""
    try:
        response = await opening
    except UpstreamUnavailable as error:
        yield error_event(dialect, str(error), code=UPSTREAM_ERROR, status=error.status)
        raise Cut from error
    finally:
        opening.cancel()
    if response.is_event_stream:
        async for piece in _events(response, dialect, model):
            yield piece
        return
    body = b"".join([piece async for piece in response.body])
    yield refusal_event(dialect, response.status, body, response.headers.get("retry-after"))
    raise Cut


async def _events(response: UpstreamResponse, dialect: Dialect, model: str) -> AsyncGenerator[bytes]:
    """Yield an event stream in complete events, so that an error event never follows a partial one."""
    normalise = response.upstream.normalise and dialect == "openai"
    reader = EventReader(dialect, ChatNormaliser(model).repaired if normalise else unchanged)
    try:
        async for piece in response.body:
            if complete := reader.complete(piece):
                yield complete
        if rest := reader.last():
            yield rest
    except (UpstreamUnavailable, UnfinishedStream) as error:
        if reader.finished:
            return
        logger.warning("upstream %s: a stream ended before its reply was finished", response.upstream.name)
        status = error.status if isinstance(error, UpstreamUnavailable) else 502
        yield error_event(dialect, str(error), code=UPSTREAM_ERROR, status=status)
        raise Cut from error
    finally:
        await response.body.aclose()


async def _body(response: UpstreamResponse, dialect: Dialect) -> AsyncGenerator[bytes]:
    """Yield a body that is no stream of events."""
    repairs = response.status >= 400 and dialect != "anthropic" and response.upstream.normalise
    try:
        async for piece in response.body:
            # The body of an error arrives in one piece.
            yield normalised_error(piece) if repairs else piece
    except UpstreamUnavailable as error:
        raise Cut from error
    finally:
        await response.body.aclose()


def _model_of(body: bytes) -> tuple[str, bool]:
    """Return the model that a body names, and whether it requests a stream; no other field is read."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadInput("body", None, f"valid JSON ({error})") from error
    given = cast(dict[str, object], value) if isinstance(value, dict) else {}
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("model", model, "the name of a model")
    return model, given.get("stream") is True
