"""Forward one request to an upstream, and its response as it arrives."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, assert_never, cast

from fastapi import Request, Response
from starlette.responses import JSONResponse

from banksman.contracts.errors import BadInput
from banksman.contracts.json_text import check_values
from banksman.contracts.messages import Usage
from banksman.gateway.assistants.prompts import Prompts
from banksman.gateway.interfaces.passthrough import sse
from banksman.gateway.interfaces.passthrough.metering import UsageMeter
from banksman.gateway.interfaces.passthrough.normaliser import ChatNormaliser, normalised_error
from banksman.gateway.interfaces.passthrough.upstreams import (
    ForwardedRequest,
    ModelRefused,
    UpstreamResponse,
    Upstreams,
    UpstreamUnavailable,
)
from banksman.gateway.models.upstreams import own_upstreams
from banksman.gateway.operation import streaming
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.errors import error_body
from banksman.gateway.operation.intake import JsonIntake
from banksman.gateway.operation.parameters import ServiceMap
from banksman.gateway.settings import Dialect, Upstream
from banksman.gateway.usage.passthrough import PassthroughUsage

logger = logging.getLogger(__name__)

UPSTREAM_ERROR = "upstream_error"
PROMPT_ID = "prompt_id"
MAX_CHANGED_BYTES = 1024 * 1024


async def forward(
    request: Request, path: str, dialect: Dialect, upstreams: Upstreams, caller: Caller
) -> Response:
    here = request.url.path
    services: ServiceMap = request.app.state.services
    usage = services.find(PassthroughUsage)
    body = await request.body()
    given = await services[JsonIntake].forwarded_fields(caller.tenant, body)
    model, streams = _model_of(given), given.get("stream") is True
    if usage is not None:
        await usage.check(caller.tenant)
    if PROMPT_ID in given:
        prompt = await services.connected(Prompts).read_prompt(str(given[PROMPT_ID]), caller)
        body = with_prompt(_parsed(body), prompt.content, dialect)
    try:
        candidates = upstreams.candidates(model, dialect, own_upstreams(services, caller.tenant))
        if usage is not None:
            candidates = await _priced(usage, caller.tenant, candidates, model)
    except ModelRefused as error:
        return refusal(here, error)
    forwarded = ForwardedRequest(path, request.url.query, body, request.headers, dialect)
    opening = upstreams.open(candidates, forwarded)
    if not await _opened(request, opening, streaming.KEEP_ALIVE_S if streams else None):
        return Response(status_code=streaming.CLIENT_CLOSED)
    meter = UsageMeter(dialect, len(body), partial(_count, usage, caller.tenant, model))
    if not opening.done():
        return streaming.StreamedResponse(
            streaming.kept_alive(_late_events(opening, dialect, model, meter)), headers=streaming.SSE_HEADERS
        )
    try:
        response = opening.result()
    except UpstreamUnavailable as error:
        headers = {"retry-after": "1"} if error.status == 503 else None
        return JSONResponse(error_body(here, error.status, UPSTREAM_ERROR, str(error)), error.status, headers)
    if response.is_event_stream:
        headers = {**response.headers, **streaming.SSE_HEADERS}
        return streaming.StreamedResponse(
            streaming.kept_alive(_events(response, dialect, model, meter)), response.status, headers
        )
    return streaming.StreamedResponse(_body(response, dialect, meter), response.status, response.headers)


def refusal(path: str, error: ModelRefused) -> Response:
    body = error_body(path, error.status, error.reason, str(error), field="model")
    return JSONResponse(body, error.status)


async def _opened(
    request: Request, opening: asyncio.Task[UpstreamResponse], patience_s: float | None
) -> bool:
    """Wait up to `patience_s` for the response; return False if the client disconnects, which cancels it."""
    try:
        waited = await streaming.unless_disconnected(
            request.receive, asyncio.wait((opening,), timeout=patience_s)
        )
    except asyncio.CancelledError:
        opening.cancel()
        raise
    client_left = waited is None and not opening.done()
    if client_left:
        opening.cancel()
        await asyncio.wait((opening,))
    return not client_left


async def _priced(
    usage: PassthroughUsage, tenant: str, candidates: tuple[Upstream, ...], model: str
) -> tuple[Upstream, ...]:
    """Return the upstreams whose use the tenant's limits can bound; raise `ModelRefused` without one."""
    names = await usage.bounded(tenant, [f"{one.name}:{model}" for one in candidates])
    found = tuple(one for one in candidates if f"{one.name}:{model}" in names)
    if not found:
        text = f"The model {model[:200]!r} has no known price, and this tenant has only a limit of cost."
        raise ModelRefused(403, "model_without_price", text)
    return found


def _count(usage: PassthroughUsage | None, tenant: str, model: str, upstream: str, consumed: Usage) -> None:
    """Count the usage of a request; one before the gateway has connected to NATS is not counted."""
    if usage is not None:
        usage.add(tenant, f"{upstream}:{model}", consumed)


async def _late_events(
    opening: asyncio.Task[UpstreamResponse], dialect: Dialect, model: str, meter: UsageMeter
) -> AsyncGenerator[bytes]:
    """Yield the events of a slow upstream. The status was already sent, so errors become error events."""
    try:
        response = await opening
    except UpstreamUnavailable as error:
        yield sse.error_event(dialect, str(error), code=UPSTREAM_ERROR, status=error.status)
        raise streaming.BodyCut from error
    finally:
        opening.cancel()
    if response.is_event_stream:
        async for piece in _events(response, dialect, model, meter):
            yield piece
        return
    body = b"".join([piece async for piece in _body(response, dialect, meter)])
    yield sse.refusal_event(dialect, response.status, body, response.headers.get("retry-after"))
    raise streaming.BodyCut


async def _events(
    response: UpstreamResponse, dialect: Dialect, model: str, meter: UsageMeter
) -> AsyncGenerator[bytes]:
    """Yield an event stream in complete events, so that an error event never follows a partial one."""
    normalise = response.upstream.normalise and dialect == "openai"
    reader = sse.EventReader(dialect, ChatNormaliser(model).repaired if normalise else sse.unchanged)
    try:
        async for piece in response.body:
            if complete := reader.complete(piece):
                meter.note_events(complete)
                yield complete
        if rest := reader.last():
            meter.note_events(rest)
            yield rest
    except (UpstreamUnavailable, sse.UnfinishedStream) as error:
        if reader.finished:
            return
        logger.warning("upstream %s: a stream ended before its reply was finished", response.upstream.name)
        status = error.status if isinstance(error, UpstreamUnavailable) else 502
        yield sse.error_event(dialect, str(error), code=UPSTREAM_ERROR, status=status)
        raise streaming.BodyCut from error
    finally:
        meter.end(response.upstream.name, response.status, complete=reader.finished)
        await response.body.aclose()


async def _body(response: UpstreamResponse, dialect: Dialect, meter: UsageMeter) -> AsyncGenerator[bytes]:
    repairs = response.status >= 400 and dialect != "anthropic" and response.upstream.normalise
    try:
        async for piece in response.body:
            meter.note_body(piece)
            # The body of an error arrives in one piece.
            yield normalised_error(piece) if repairs else piece
    except UpstreamUnavailable as error:
        raise streaming.BodyCut from error
    finally:
        meter.end(response.upstream.name, response.status)
        await response.body.aclose()


def _parsed(body: bytes) -> dict[str, Any]:
    """Parse a body that is changed before it is forwarded, which is done in this process."""
    if len(body) > MAX_CHANGED_BYTES:
        raise BadInput(PROMPT_ID, None, f"a body of at most {MAX_CHANGED_BYTES} bytes")
    check_values(body)
    return json.loads(body)


def _model_of(given: dict[str, Any]) -> str:
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("model", model, "the name of a model")
    return model


def with_prompt(body: dict[str, Any], prompt: str, dialect: Dialect) -> bytes:
    """Return the body with a system prompt before its own; raise `BadInput` if it has no place for one."""
    rest = {name: value for name, value in body.items() if name != PROMPT_ID}
    match dialect:
        case "openai":
            messages = rest.get("messages")
            if not isinstance(messages, list):
                raise BadInput("messages", messages, "a list of messages")
            system = {"role": "system", "content": prompt}
            rest["messages"] = [system, *cast(list[Any], messages)]
        case "anthropic":
            own = rest.get("system")
            if isinstance(own, list):
                rest["system"] = [{"type": "text", "text": prompt}, *cast(list[Any], own)]
            else:
                rest["system"] = _before(prompt, own)
        case "responses":
            rest["instructions"] = _before(prompt, rest.get("instructions"))
        case _:
            assert_never(dialect)
    return json.dumps(rest, ensure_ascii=False).encode()


def _before(prompt: str, own: object) -> str:
    return f"{prompt}\n\n{own}" if isinstance(own, str) and own else prompt
