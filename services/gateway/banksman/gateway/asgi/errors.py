"""What a failed request is answered, in the words of the API that its path belongs to."""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.frames import error_frame
from banksman.contracts.wire import bad_input

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
}
"""HTTP status by code; any other code is 500."""

OPENAI_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 500: "server_error"}
"""OpenAI's own words where they have one."""

OPENAI_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/responses")
ANTHROPIC_PATHS = ("/v1/messages",)
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
WITHOUT_PREFIX = ("/models", "/chat/completions", "/messages", "/responses", "/system-prompts")
"""Paths that users reach for when they forget `/v1`."""


def refusal(path: str, status: int, code: str, message: str, *, field: str | None = None) -> dict[str, Any]:
    """The body of an error answer."""
    if path.startswith(ANTHROPIC_PATHS):
        kind = ANTHROPIC_TYPES.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    if path.startswith(OPENAI_PATHS):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        known = OPENAI_CODES.get(status, code)
        return {"error": {"message": message, "type": kind, "param": field, "code": known}}
    body: dict[str, Any] = {"message": message, "code": code}
    if field is not None:
        body["field"] = field
    if path.startswith("/v1/"):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        body = {"type": kind, "param": field, **body}
    return {"error": body}


def answer_to(path: str, error: BanksmanError) -> Response:
    """The answer to one of our errors."""
    frame = error_frame(error)
    status = STATUS.get(error.code, 500)
    headers: dict[str, str] = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if frame.retry_after_s is not None and status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(frame.retry_after_s)))
    field = getattr(error, "field", None)
    body = refusal(path, status, frame.code, frame.message, field=field if isinstance(field, str) else None)
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Answer every error of an application so."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, BanksmanError)
        return answer_to(request.url.path, error)

    async def of_framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, status = request.url.path, error.status_code
        if status == 404:
            return JSONResponse(refusal(path, 404, "unknown_url", _unknown(request)), 404)
        codes = {405: "method_not_allowed", 413: ErrorCode.TOO_LARGE.value}
        code = codes.get(status, ErrorCode.BAD_REQUEST.value)
        return JSONResponse(refusal(path, status, code, str(error.detail)), status, error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        body = refusal(request.url.path, 400, ErrorCode.BAD_REQUEST, f"{field}: {first['msg']}", field=field)
        return JSONResponse(body, 400)

    async def misfit(request: Request, error: Exception) -> Response:
        # What a path or a header holds became a field of a frame, and does not fit it.
        assert isinstance(error, ValidationError)
        return answer_to(request.url.path, bad_input(error))

    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(refusal(request.url.path, 500, ErrorCode.INTERNAL, "internal error"), 500)

    app.add_exception_handler(BanksmanError, ours)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ValidationError, misfit)
    app.add_exception_handler(Exception, unexpected)


def _unknown(request: Request) -> str:
    path = request.url.path
    message = f"Unknown request URL: {request.method} {path}."
    if path.startswith(WITHOUT_PREFIX):
        return f"{message} Did you mean /v1{path}? The base URL ends with /v1."
    if path.startswith("/v1/v1/"):
        return f"{message} Did you mean {path.removeprefix('/v1')}? Give the base URL without a second /v1."
    return message
