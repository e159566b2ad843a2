"""The errors that scripts contain, in the formats of the vendors."""

from __future__ import annotations

from banksman.model_server.chat import Dialect, Json, dumps
from banksman.model_server.replies import typed_event
from tests.support.scripted_models.script import HttpError, StreamError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def http_error(fault: HttpError, dialect: Dialect, request_id: str) -> bytes:
    """Return the body of an error status."""
    if dialect == "anthropic":
        return _anthropic(fault.message, fault.status, fault.error_type, request_id)
    return _openai(fault.message, fault.status, fault.error_type, fault.code)


def stream_error(fault: StreamError, dialect: Dialect, request_id: str) -> bytes:
    """Return the event that reports a fault within a stream; with OpenAI, no `[DONE]` follows it."""
    match dialect:
        case "openai":
            return b"data: " + _openai(fault.message, 500, fault.error_type) + b"\n\n"
        case "anthropic":
            return (
                b"event: error\ndata: "
                + _anthropic(fault.message, 500, fault.error_type, request_id)
                + b"\n\n"
            )
        case "responses":
            code = fault.error_type or "server_error"
            return typed_event("error", {"code": code, "message": fault.message, "param": None})


def _openai(message: str, status: int, error_type: str | None, code: str | None = None) -> bytes:
    default_type = "server_error" if status >= 500 else "invalid_request_error"
    error: Json = {
        "message": message,
        "type": error_type or _OPENAI_TYPES.get(status, default_type),
        "param": None,
        "code": code or _OPENAI_CODES.get(status),
    }
    return dumps({"error": error}).encode()


def _anthropic(message: str, status: int, error_type: str | None, request_id: str) -> bytes:
    default_type = "api_error" if status >= 500 else "invalid_request_error"
    kind = error_type or _ANTHROPIC_TYPES.get(status, default_type)
    error = {"type": kind, "message": message}
    return dumps({"type": "error", "error": error, "request_id": request_id}).encode()
