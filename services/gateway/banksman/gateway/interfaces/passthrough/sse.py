"""Server-sent events of the model APIs: where events end, whether a stream is finished, error events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, assert_never, cast

from banksman.gateway.operation.errors import ANTHROPIC_TYPES
from banksman.gateway.operation.streaming import EVENT_ENDS
from banksman.gateway.settings import Dialect
from banksman.runtime.redaction import redacted

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum bytes of an event, which is in memory until it is complete. A longer event ends its stream."""

# A quotation mark or a line end within a JSON string is escaped, so no text of a model matches. Each pattern
# begins with literal text, which `re` finds many times faster than alternatives.
_FINISHED: dict[Dialect, tuple[re.Pattern[bytes], ...]] = {
    "openai": (
        re.compile(rb'"finish_reason"\s*:\s*"\w'),
        re.compile(rb'data:[ \t]*(?:\[DONE\][ \t]*(?:[\r\n]|\Z)|\{\s*"error"\s*:)'),
        re.compile(rb'"object"\s*:\s*"error"'),
    ),
    "anthropic": (re.compile(rb'"type"\s*:\s*"(?:message_stop|error)"'),),
    "responses": (re.compile(rb'"type"\s*:\s*"(?:response\.(?:completed|incomplete|failed)|error)"'),),
}
"""Text that the last events of a finished stream contain, including errors."""
_ERROR = re.compile(
    rb'"error"[ \t]*:[ \t]*["{]|"(?:type|object)"[ \t]*:[ \t]*"error"|^event:[ \t]*error', re.MULTILINE
)
"""Matches events with an error, in which upstreams repeat the headers of the request."""


class UnfinishedStream(Exception):
    pass


def unchanged(events: bytes) -> bytes:
    return events


class EventReader:
    """Divides a stream into complete events, repairs them, and detects the end of the reply."""

    def __init__(self, dialect: Dialect, repair: Callable[[bytes], bytes] = unchanged) -> None:
        self._endings = _FINISHED[dialect]
        self._repair = repair
        self._rest = bytearray()
        self.finished = False
        """Whether an event has arrived that finishes the reply."""

    def complete(self, piece: bytes) -> bytes:
        """Return the events that a piece completes, repaired; raise `UnfinishedStream` if one is too long."""
        if self._rest or not piece.endswith(EVENT_ENDS):
            piece = self._joined(piece)
        return self._repaired(piece) if piece else b""

    def last(self) -> bytes:
        """Return the last event if only its blank line is missing; raise `UnfinishedStream` if more is."""
        rest = bytes(self._rest)
        last = self._repaired(rest) if _is_whole(rest) else b""
        if not self.finished:
            raise UnfinishedStream("the upstream ended the stream before the reply was finished")
        return last

    def _repaired(self, events: bytes) -> bytes:
        events = self._repair(events)
        if _ERROR.search(events):
            events = redacted(events.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        self.finished = self.finished or any(ending.search(events) for ending in self._endings)
        return events

    def _joined(self, piece: bytes) -> bytes:
        searched_from = max(0, len(self._rest) - 3)
        self._rest += piece
        ends = ((self._rest.rfind(mark, searched_from), len(mark)) for mark in EVENT_ENDS)
        end = max((at + length for at, length in ends if at >= 0), default=0)
        if not end and len(self._rest) > MAX_EVENT_BYTES:
            raise UnfinishedStream(f"the upstream sent an event of more than {MAX_EVENT_BYTES} bytes")
        complete = bytes(self._rest[:end])
        del self._rest[:end]
        return complete


def data_of(event: bytes) -> bytes | None:
    """Return the data of one event; None for a comment or an event without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    found = [line[5:].removeprefix(b" ") for line in lines]
    return b"\n".join(found) if found else None


def json_object(text: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object of a text; None if it is none."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def event_of(data: Mapping[str, Any], name: str | None = None) -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def error_event(dialect: Dialect, message: str, *, code: str, status: int) -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if dialect == "anthropic":
        kind = ANTHROPIC_TYPES.get(status, "api_error")
    return _error_event(dialect, {"message": message, "type": kind, "param": None, "code": code})


def refusal_event(dialect: Dialect, status: int, body: bytes, retry_after: str | None) -> bytes:
    """Return the event for an upstream's refusal that arrived after the response had begun.

    It has the upstream's own error object, with the status and the seconds of `retry-after`, which can no
    longer be sent in the head of the response.
    """
    own = _error_in(body)
    if own is None:
        text = body.decode("utf-8", "replace")[:2000]
        own = {"message": f"the upstream responded with {status}: {text}", "type": "server_error"}
    error: dict[str, Any] = {"param": None, "code": None, **own, "status": status}
    if retry_after is not None:
        error["retry_after"] = float(retry_after) if retry_after.isdecimal() else retry_after
    return _error_event(dialect, error)


def _error_event(dialect: Dialect, error: dict[str, Any]) -> bytes:
    match dialect:
        case "anthropic":
            own = {name: value for name, value in error.items() if name not in ("param", "code")}
            return event_of({"type": "error", "error": own}, "error")
        case "responses":
            return event_of({**error, "type": "error"}, "error")
        case "openai":
            # No `[DONE]` follows, because openai-py treats a stream that ends with it as a success.
            return event_of({"error": error})
        case _:
            assert_never(dialect)


def _error_in(body: bytes) -> dict[str, Any] | None:
    error = (json_object(body) or {}).get("error")
    if isinstance(error, str):
        return {"message": error, "type": "server_error"}
    own = cast(dict[str, Any], error) if isinstance(error, dict) else {}
    return own if isinstance(own.get("message"), str) else None


def _is_whole(event: bytes) -> bool:
    data = data_of(event)
    if data is None:
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return data.strip() == b"[DONE]"
    return True
