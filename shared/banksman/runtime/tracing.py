"""W3C Trace Context: the trace of the request that a task serves (https://www.w3.org/TR/trace-context/).

Without a trace, no trace context is stored, sent or logged.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from structlog.contextvars import bound_contextvars

HEADER = "traceparent"

_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def valid(given: str | None) -> str | None:
    """Return a `traceparent` in the form of version 00; None if it is missing or malformed.

    A later version may append fields after a dash; they are dropped, as the specification requires.
    """
    found = None if given is None else _FORM.match(given)
    if given is None or found is None:
        return None
    version, trace_id, parent_id, flags = found.groups()
    if len(given) > _LENGTH and (version == "00" or given[_LENGTH] != "-"):
        return None
    return f"00-{trace_id}-{parent_id}-{int(flags, 16) & 1:02x}"


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id, 32 hexadecimal digits, of a valid `traceparent`."""
    return None if traceparent is None else traceparent[3:35]


def current() -> str | None:
    """Return the `traceparent` of the request that this task serves; None without a trace."""
    return _current.get()


def outgoing() -> dict[str, str]:
    """Return the header for a request to another system, with a new child span; empty without a trace."""
    traceparent = _current.get()
    if traceparent is None:
        return {}
    return {HEADER: f"{traceparent[:36]}{secrets.token_hex(8)}{traceparent[52:]}"}


@contextmanager
def traced(traceparent: str | None) -> Generator[None]:
    """Continue a trace while the block runs: log lines, also of tasks started in it, have the `trace_id`.

    A missing or malformed value continues no trace.
    """
    checked = valid(traceparent)
    if checked is None:
        yield
        return
    token = _current.set(checked)
    try:
        with bound_contextvars(trace_id=trace_id_of(checked)):
            yield
    finally:
        _current.reset(token)
