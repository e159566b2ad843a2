"""The tree of exceptions, and the error codes that clients receive.

BanksmanError
├── CallerMistake                 the request is at fault; repeating it unchanged fails again
│   ├── BadInput                  a field is missing or invalid: field, value, expected
│   ├── TooLarge                  the body or the file has more bytes than are accepted
│   ├── NotFound                  kind and id; also raised for an id of another tenant
│   ├── Conflict                  the state forbids it: duplicate tool, another body under one request id
│   ├── Unauthorized              the token is missing, invalid or expired
│   └── Forbidden                 the token lacks the permission
├── Refused                       the request is valid but cannot be served now: retry_after_s
│   ├── NotReady                  the object exists but is not stored yet
│   ├── Overloaded                a limit is reached, or storage is full
│   ├── StorageFull               the disk of the files is full
│   └── Unavailable               the broker, a runner or an upstream cannot be reached
└── Fault                         this platform or a peer failed
    ├── Poison                    a stored message cannot be decoded: it is dead-lettered
    └── ProviderFailed            a model's API failed after all retries: provider, status, unavailable
        ├── EmptyReply            the model wrote neither text nor calls, also when requested again
        ├── ContextOverflow       the request has more tokens than the model accepts
        └── ProviderTimedOut      the reply was not complete within the time that the run has left

Signal (control flow inside `banksman.runs`, not an error)
└── Fenced                        a higher claim owns the run: stop, neither ack nor nak
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Final


class ErrorCode(StrEnum):
    """The error codes in `error` frames, HTTP bodies and `run.finished.error`."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_TYPE = "unknown_type"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    NOT_READY = "not_ready"
    BUSY = "busy"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too_large"
    STORAGE_FULL = "storage_full"
    INTERNAL = "internal"
    MAX_ITERATIONS = "max_iterations"
    RUN_TIMEOUT = "run_timeout"
    MALFORMED_CALLS = "malformed_calls"
    REJECTED = "rejected"
    APPROVAL_EXPIRED = "approval_expired"
    CANCELLED = "cancelled"
    CALL_LIMIT = "call_limit"
    TOKEN_LIMIT = "token_limit"
    COST_LIMIT = "cost_limit"
    TENANT_TOKEN_LIMIT = "tenant_token_limit"
    TENANT_COST_LIMIT = "tenant_cost_limit"
    CRASH_LOOP = "crash_loop"
    PROVIDER_ERROR = "provider_error"
    CONTEXT_OVERFLOW = "context_overflow"
    EMPTY_REPLY = "empty_reply"
    WORKFLOW_ERROR = "workflow_error"
    CONVERSATION_DELETED = "conversation_deleted"


class _Null:
    """The type of `NULL`."""


NULL: Final = _Null()
"""Represents a received null as the value of a `BadInput`, where None means that no value is shown."""


class BanksmanError(Exception):
    """The root of the tree. Clients receive `code` and `retryable`."""

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False
    retry_after_s: float | None = None
    """Seconds after which a client may retry; None if no time is known."""
    details: dict[str, Any] | None = None
    """Facts for clients beside the message."""

    @property
    def public(self) -> str:
        """The message for clients; logs have the full message, with subjects and the broker's own text."""
        return str(self)


class CallerMistake(BanksmanError):
    """The request is at fault."""

    code = ErrorCode.BAD_REQUEST


class BadInput(CallerMistake):
    """A field is missing or has an invalid value: `NULL` for null, None if it is missing or secret.

    `expected` is a noun, or a predicate that begins with "must" or "is"; advice may follow after a semicolon.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        # The name of a field may be a key that the caller chose.
        field = _beginning(field)
        self.field = field
        self.value = value
        self.expected = expected
        self.details = {"field": field, "expected": expected}
        rule, semicolon, advice = expected.partition("; ")
        says = f" {rule}" if rule.startswith(("must ", "is ")) else f": expected {rule}"
        got = "" if value is None or rule.startswith("is ") else f", got {_shown(value)}"
        super().__init__(f"{field}{says}{got}{semicolon}{advice}")


def _shown(value: object, limit: int = 120) -> str:
    """Return the beginning of a value as JSON, with text in single quotation marks."""
    if isinstance(value, str):
        return repr(_beginning(value, limit))
    return _beginning("null" if value is NULL else json.dumps(value, default=str), limit)


def _beginning(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


class NotFound(CallerMistake):
    """No object of this kind has the id, or the caller may not see it."""

    code = ErrorCode.NOT_FOUND

    def __init__(self, kind: str, id: str) -> None:
        self.kind = kind
        self.id = id
        super().__init__(f"no {kind} with id {id!r}")


class Conflict(CallerMistake):
    """The current state forbids the request."""

    code = ErrorCode.CONFLICT


class Unauthorized(CallerMistake):
    """The token is missing, invalid or expired."""

    code = ErrorCode.UNAUTHORIZED


class Forbidden(CallerMistake):
    """The token is valid but lacks the permission."""

    code = ErrorCode.FORBIDDEN


class TooLarge(CallerMistake):
    """A body or a file has more bytes than its limit."""

    code = ErrorCode.TOO_LARGE


class Refused(BanksmanError):
    """The request is valid but cannot be served now."""

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0, public: str | None = None) -> None:
        self.retry_after_s = retry_after_s
        self._public = public
        super().__init__(message)

    @property
    def public(self) -> str:
        """The message for clients."""
        return self._public or str(self)


class NotReady(Refused):
    """The object exists but is not stored yet."""

    code = ErrorCode.NOT_READY


class Overloaded(Refused):
    """A limit is reached, or storage is full."""

    code = ErrorCode.BUSY


class StorageFull(Refused):
    """The disk of the files is full."""

    code = ErrorCode.STORAGE_FULL


class Unavailable(Refused):
    """The broker, a runner or an upstream cannot be reached."""

    code = ErrorCode.UNAVAILABLE
    no_responders: bool = False
    """True if no process serves the subject, so nothing was done."""


class Fault(BanksmanError):
    """This platform or a peer failed."""

    @property
    def public(self) -> str:
        """The message for clients; generic for internal errors, which concern operators only."""
        return "internal error" if self.code is ErrorCode.INTERNAL else str(self)


class Poison(Fault):
    """A stored message cannot be decoded."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"{subject}: {reason}")


class ProviderFailed(Fault):
    """A model's API refused the request or failed after all retries."""

    code = ErrorCode.PROVIDER_ERROR

    def __init__(
        self, provider: str, message: str, *, status: int | None = None, unavailable: bool = False
    ) -> None:
        self.provider = provider
        self.message = message
        """What the vendor returned."""
        self.status = status
        self.unavailable = unavailable
        """True if the request is valid, so another provider may serve it."""
        super().__init__(
            f"{provider}: {message}" if status is None else f"{provider} returned {status}: {message}"
        )


class EmptyReply(ProviderFailed):
    """A model wrote neither text nor calls, also when it was requested again."""

    code = ErrorCode.EMPTY_REPLY


class ContextOverflow(ProviderFailed):
    """A model refused a request that is longer than its context."""

    code = ErrorCode.CONTEXT_OVERFLOW


class ProviderTimedOut(ProviderFailed):
    """A model did not complete its reply within the time that the run has left."""


class Signal(Exception):
    """Controls the flow inside `banksman.runs`; clients never receive it."""


class Fenced(Signal):
    """A higher claim owns the run: stop, neither ack nor nak."""

    def __init__(self, conversation_id: str, held: int, found: int) -> None:
        self.conversation_id = conversation_id
        self.held = held
        self.found = found
        super().__init__(f"{conversation_id}: owner epoch {held} is fenced by {found}")
