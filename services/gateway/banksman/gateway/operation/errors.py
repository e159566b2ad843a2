"""Error responses, in the format of the API that the request's path belongs to."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode
from banksman.contracts.frames import error_frame
from banksman.contracts.validation_errors import bad_input, expected
from banksman.contracts.wire import JsonObject, Stored

logger = logging.getLogger(__name__)

STATUS: dict[ErrorCode, int] = {
    ErrorCode.BAD_REQUEST: 400,
    ErrorCode.UNKNOWN_TYPE: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.NOT_READY: 503,
    ErrorCode.BUSY: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.STORAGE_FULL: 507,
}
"""HTTP status by error code; 500 for any other code."""


class ErrorDetail(Stored):
    """Why a request failed."""

    message: str
    code: str
    field: str | None = None
    """The field of the request that is wrong; absent for other errors."""
    details: JsonObject | None = None
    """Further facts, such as the current content of an approval request; absent for most errors."""
    type: str | None = None
    """On paths under `/v1`: OpenAI's type of the error."""
    param: str | None = None
    """On paths under `/v1`: the same as `field`."""


class ErrorBody(Stored):
    """The body of an error response."""

    error: ErrorDetail


class OpenAIErrorDetail(Stored):
    """Why a request failed, in OpenAI's format: all four are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(Stored):
    """The body of an error response in OpenAI's format."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(Stored):
    """Why a request failed, in Anthropic's format."""

    type: str
    message: str
    details: JsonObject | None = None


class AnthropicErrorBody(Stored):
    """The body of an error response in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail


_MEANINGS = {
    400: "A field is missing or wrong",
    401: "The API key is missing, unknown or expired",
    403: "The API key does not open this endpoint",
    404: "Not found",
    409: "The stored state forbids the request",
    413: "The body is too large",
    429: "Too many requests; `retry-after` in seconds",
    503: "Not now; `retry-after` in seconds",
    507: "The disk of the files is full",
}


def errors_as(model: type[Stored]) -> dict[int | str, dict[str, Any]]:
    """Return the error responses that OpenAPI lists for endpoints whose errors have this body."""
    # FastAPI builds a field for every response model of every route; a reference to the model of `default`
    # costs nothing at the start.
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    listed: dict[int | str, dict[str, Any]] = {
        status: {"content": content, "description": meaning} for status, meaning in _MEANINGS.items()
    }
    return {**listed, "default": {"model": model, "description": "Any other error"}}


ERRORS = errors_as(ErrorBody)

UNKNOWN_URL, METHOD_NOT_ALLOWED = "unknown_url", "method_not_allowed"
"""The codes that only HTTP has."""

OPENAI_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 500: "server_error"}
"""OpenAI's own codes, by HTTP status."""

OPENAI_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/responses", "/context/chat/completions")
ANTHROPIC_PATHS = ("/v1/messages", "/context/chat/messages", "/context/chat/v1/messages")
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
THREAD = "thread"
"""The field of Anthropic's requests that refers to earlier messages stored at the server."""
THREADS_UNSUPPORTED = {"error_code": "thread_unsupported_request", "unsupported": [THREAD]}
"""Anthropic's SDKs continue without threads after an error with these details."""
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
PATHS_WITHOUT_PREFIX = ("/models", "/chat/completions", "/messages", "/responses", "/system-prompts")
"""Paths that clients request when their base URL lacks `/v1`."""


def error_body(
    path: str,
    status: int,
    code: str,
    message: str,
    *,
    field: str | None = None,
    details: JsonObject | None = None,
) -> dict[str, Any]:
    if path.startswith(PATHS_WITHOUT_PREFIX):
        path = f"/v1{path}"
    if path.startswith(ANTHROPIC_PATHS):
        kind = ANTHROPIC_TYPES.get(status, "api_error")
        unsupported = {"details": THREADS_UNSUPPORTED} if field == THREAD else {}
        return {"type": "error", "error": {"type": kind, "message": message} | unsupported}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if path.startswith(OPENAI_PATHS):
        known = OPENAI_CODES.get(status, code)
        return {"error": {"message": message, "type": kind, "param": field, "code": known}}
    body: dict[str, Any] = {"message": message, "code": code}
    if field is not None:
        body["field"] = field
    elif details is not None:
        body["details"] = details
    if path.startswith("/v1/"):
        body = {"type": kind, "param": field, **body}
    return {"error": body}


def error_response(path: str, error: BanksmanError) -> Response:
    if error.code is ErrorCode.INTERNAL:
        # The client is not told what failed inside.
        logger.error("%s failed: %s", path, error)
    frame = error_frame(error)
    status = STATUS.get(error.code, 500)
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if frame.retry_after_s is not None and status in (429, 503, 507):
        headers["retry-after"] = str(max(1, math.ceil(frame.retry_after_s)))
    field = getattr(error, "field", None)
    body = error_body(
        path,
        status,
        frame.code,
        frame.message,
        field=field if isinstance(field, str) else None,
        details=frame.details,
    )
    return JSONResponse(body, status, headers)


async def no_response(_: Request, _error: Exception) -> Response:
    """Respond to a client that has gone while its body was read."""
    return Response(status_code=400)


def install(app: FastAPI) -> None:
    app.add_exception_handler(ClientDisconnect, no_response)
    for kind in (BanksmanError, HTTPException, RequestValidationError, ValidationError, Exception):
        app.add_exception_handler(kind, respond)


async def respond(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case BanksmanError():
            return error_response(path, error)
        case HTTPException(__cause__=BanksmanError() as cause):
            # FastAPI wraps what is raised while it reads the body, such as `BodyTooLarge`.
            return error_response(path, cause)
        case HTTPException(status_code=404):
            return JSONResponse(error_body(path, 404, UNKNOWN_URL, _unknown_url(request)), 404)
        case HTTPException(status_code=status):
            codes = {405: METHOD_NOT_ALLOWED, 413: ErrorCode.TOO_LARGE.value}
            code = codes.get(status, ErrorCode.BAD_REQUEST.value)
            headers = _allowed(request) if status == 405 else error.headers
            return JSONResponse(error_body(path, status, code, str(error.detail)), status, headers)
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"][1:])
            return error_response(path, BadInput(field, first["input"], expected(first)))
        case ValidationError():
            # A value of the path or of a header became a field of a frame and does not fit it.
            return error_response(path, bad_input(error))
        case _:
            logger.error("%s %s failed", request.method, path, exc_info=error)
            return JSONResponse(error_body(path, 500, ErrorCode.INTERNAL, "internal error"), 500)


def _allowed(request: Request) -> dict[str, str]:
    """Return the header with all methods of a path. Starlette lists only the methods of the first route."""
    routes = cast(Starlette, request.app).routes

    def has(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in routes)

    return {"allow": ", ".join(filter(has, METHODS))}


def _unknown_url(request: Request) -> str:
    path = request.url.path
    message = f"Unknown request URL: {request.method} {path}."
    if path.startswith(PATHS_WITHOUT_PREFIX):
        return f"{message} Did you mean /v1{path}? The base URL ends with /v1."
    if path.startswith("/v1/v1/"):
        return f"{message} Did you mean {path.removeprefix('/v1')}? Give the base URL without a second /v1."
    return message
