"""What can go wrong, drawn once.

BanksmanError
├── CallerMistake                 the request is at fault; repeating it unchanged fails again
│   ├── BadInput                  a field is missing or wrong: field, value, expected
│   ├── NotFound                  kind and id; also what another tenant's id answers
│   ├── Conflict                  the state forbids it: duplicate tool, other body under one request id
│   ├── Unauthorized              no token, or a wrong or expired one
│   └── Forbidden                 a valid token without the right
├── Refused                       nothing is wrong with the request, but not now: retry_after_s
│   ├── NotReady                  the thing exists but is not stored yet
│   ├── Overloaded                a bound is reached, or storage is full
│   └── Unavailable               the broker, a runner or an upstream cannot be reached
└── Fault                         ours or a peer's
    ├── Poison                    a stored message that cannot be read: goes to the dead letters
    └── ProviderFailed            a model's API failed for good: provider, status, unavailable

Signal (not errors: they steer control flow inside `banksman.runs`)
└── Fenced                        a higher claim owns the run: stop, neither ack nor nak
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Every code a client can meet, in `error` frames, HTTP bodies and `run.finished.error`."""

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
    WORKFLOW_ERROR = "workflow_error"
    CONVERSATION_DELETED = "conversation_deleted"


class BanksmanError(Exception):
    """The root. `code` and `retryable` are what a client is told."""

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry makes sense; None when there is nothing to say."""
        return None


class CallerMistake(BanksmanError):
    """The request is at fault."""

    code = ErrorCode.BAD_REQUEST


class BadInput(CallerMistake):
    """A field is missing or has a value that does not fit."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        got = "" if value is None else f" (got {value!r})"
        super().__init__(f"{field}: {expected}{got}")


class NotFound(CallerMistake):
    """Nothing of that id that this caller may see."""

    code = ErrorCode.NOT_FOUND

    def __init__(self, kind: str, id: str) -> None:
        self.kind = kind
        self.id = id
        super().__init__(f"no {kind} with id {id!r}")


class Conflict(CallerMistake):
    """The state forbids what was asked."""

    code = ErrorCode.CONFLICT


class Unauthorized(CallerMistake):
    """No token, or a wrong or expired one."""

    code = ErrorCode.UNAUTHORIZED


class Forbidden(CallerMistake):
    """A valid token without the right."""

    code = ErrorCode.FORBIDDEN


class Refused(BanksmanError):
    """Nothing is wrong with the request, but not now."""

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        self._retry_after_s = retry_after_s
        super().__init__(message)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry makes sense."""
        return self._retry_after_s


class NotReady(Refused):
    """The thing exists but is not stored yet."""

    code = ErrorCode.NOT_READY


class Overloaded(Refused):
    """A bound is reached, or storage is full."""

    code = ErrorCode.BUSY


class Unavailable(Refused):
    """The broker, a runner or an upstream cannot be reached."""

    code = ErrorCode.UNAVAILABLE
    no_responders: bool = False
    """True when nobody serves what was asked for, so that nothing was done."""


class Fault(BanksmanError):
    """Ours or a peer's."""


class Poison(Fault):
    """A stored message that cannot be read."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"{subject}: {reason}")


class ProviderFailed(Fault):
    """A model's API failed for good."""

    code = ErrorCode.PROVIDER_ERROR

    def __init__(
        self, provider: str, message: str, *, status: int | None = None, unavailable: bool = False
    ) -> None:
        self.provider = provider
        self.status = status
        self.unavailable = unavailable
        """True when nothing is wrong with the request: another provider may answer it."""
        super().__init__(
            f"{provider}: {message}" if status is None else f"{provider} answered {status}: {message}"
        )


class Signal(Exception):
    """Steers control flow; never reaches a user."""


class Fenced(Signal):
    """A higher claim owns the run: stop, neither ack nor nak."""

    def __init__(self, conversation_id: str, held: int, found: int) -> None:
        self.conversation_id = conversation_id
        self.held = held
        self.found = found
        super().__init__(f"{conversation_id}: owner epoch {held} met {found}")
