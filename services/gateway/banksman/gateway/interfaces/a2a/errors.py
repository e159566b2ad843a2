"""Errors of A2A's JSON-RPC binding.

https://a2a-protocol.org/latest/specification/#95-error-handling
"""

from __future__ import annotations

from typing import Any

from banksman.contracts.errors import (
    BadInput,
    BanksmanError,
    CallerMistake,
    Conflict,
    Forbidden,
    NotFound,
    Unauthorized,
)

PARSE_ERROR = (-32700, "PARSE_ERROR")
INVALID_REQUEST = (-32600, "INVALID_REQUEST")
METHOD_NOT_FOUND = (-32601, "METHOD_NOT_FOUND")
INVALID_PARAMS = (-32602, "INVALID_PARAMS")
INTERNAL = (-32603, "INTERNAL_ERROR")
TASK_NOT_FOUND = (-32001, "TASK_NOT_FOUND")
TASK_NOT_CANCELABLE = (-32002, "TASK_NOT_CANCELABLE")
PUSH_NOT_SUPPORTED = (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED_OPERATION = (-32004, "UNSUPPORTED_OPERATION")
CONTENT_TYPE_NOT_SUPPORTED = (-32005, "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD = (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
VERSION_NOT_SUPPORTED = (-32009, "VERSION_NOT_SUPPORTED")


class RpcError(Exception):
    """An error of the protocol that refuses a request."""

    def __init__(self, kind: tuple[int, str], message: str) -> None:
        self.kind = kind
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        code, reason = self.kind
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "a2a-protocol.org",
        }
        return {"code": code, "message": str(self), "data": [info]}


def rpc_error(error: BanksmanError) -> RpcError:
    """Return the JSON-RPC error for a mistake of the caller.

    Raises:
        BanksmanError: `error` itself, if an HTTP status reports it: missing rights, limits, faults.
    """
    match error:
        case Unauthorized() | Forbidden():
            raise error
        case BadInput():
            return RpcError(INVALID_PARAMS, error.public)
        case NotFound():
            return RpcError(TASK_NOT_FOUND, error.public)
        case Conflict():
            return RpcError(UNSUPPORTED_OPERATION, error.public)
        case CallerMistake():
            return RpcError(INVALID_PARAMS, error.public)
        case _:
            raise error
