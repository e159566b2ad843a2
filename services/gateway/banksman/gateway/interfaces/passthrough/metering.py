"""Reads the usage of a request from its forwarded response."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from prometheus_client import Counter

from banksman.contracts.messages import MAX_TOKENS, Usage
from banksman.gateway.interfaces.passthrough.sse import data_of, json_object
from banksman.gateway.settings import Dialect

LAST_BLOCKS = 8
MAX_BLOCK_BYTES = 64 * 1024
"""Bytes of a block of events that are searched for usage; vendors send it in events of its own."""
MAX_BODY_BYTES = 1024 * 1024
"""Bytes of a body that are read for usage; the usage of a longer one is estimated."""
CHARS_PER_TOKEN = 4

_TOKENS = Counter("banksman_passthrough_tokens", "Tokens of forwarded requests.", ["direction"])
_REQUESTS = Counter("banksman_passthrough_requests", "Forwarded requests.", ["upstream", "dialect", "status"])


@dataclass(slots=True)
class UsageMeter:
    """Collects the usage of one response while it is forwarded, and reports it once.

    If the upstream reports no usage, it is estimated: a token is four bytes of the request, an event of a
    stream, or four bytes of another body. A stream that was cut has written a token with each event at least.
    A refused request consumed nothing.
    """

    dialect: Dialect
    request_bytes: int
    report: Callable[[str, Usage], None]
    """Receives the name of the upstream and the usage, without its cost."""
    _first: bytes = b""
    _last: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=LAST_BLOCKS))
    _events: int = 0
    _body: bytearray = field(default_factory=bytearray)
    _body_bytes: int = 0

    def note_events(self, events: bytes) -> None:
        self._events += events.count(b"data:")
        block = events if len(events) <= MAX_BLOCK_BYTES else events[-MAX_BLOCK_BYTES:]
        if not self._first:
            # Anthropic sends the input tokens with the first event.
            self._first = events[:MAX_BLOCK_BYTES]
        self._last.append(block)

    def note_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if len(self._body) <= MAX_BODY_BYTES:
            self._body += piece

    def end(self, upstream: str, status: int, *, complete: bool = True) -> None:
        _REQUESTS.labels(upstream, self.dialect, str(status)).inc()
        if status >= 400:
            return
        found = _usage_in_events((self._first, *self._last)) if self._events else _usage_of(bytes(self._body))
        estimate = self._events or self._body_bytes // CHARS_PER_TOKEN
        read = _input_tokens(found)
        written = _number(found, "completion_tokens", "output_tokens")
        if written is None or not complete:
            # Anthropic reports one output token with the first event.
            written = max(written or 0, estimate)
        usage = Usage(
            input_tokens=self.request_bytes // CHARS_PER_TOKEN if read is None else read,
            output_tokens=written,
            **_cached_tokens(found),
        )
        _TOKENS.labels("input").inc(usage.input_tokens)
        _TOKENS.labels("output").inc(usage.output_tokens)
        self.report(upstream, usage)


def _usage_in_events(blocks: tuple[bytes, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in blocks:
        for event in block.replace(b"\r", b"\n").split(b"\n\n"):
            if b'"usage"' in event:
                found |= {name: value for name, value in _usage_of(data_of(event) or b"").items() if value}
    return found


def _usage_of(body: bytes) -> dict[str, Any]:
    given = json_object(body) or {}
    for holder in (given, given.get("message"), given.get("response")):
        usage = cast(dict[str, Any], holder).get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return cast(dict[str, Any], usage)
    return {}


def _input_tokens(usage: dict[str, Any]) -> int | None:
    tokens = _number(usage, "prompt_tokens", "input_tokens")
    if tokens is None:
        return None
    # Anthropic reports cached tokens in addition to the input tokens, OpenAI as a part of them.
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return tokens + sum(_number(usage, name) or 0 for name in cached)


def _cached_tokens(usage: dict[str, Any]) -> dict[str, int]:
    """Return the parts of the input tokens that have prices of their own, as fields of `Usage`."""
    details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
    for_an_hour = _number(_part(usage, "cache_creation"), "ephemeral_1h_input_tokens")
    return {
        "cached_tokens": _number({**details, **usage}, "cache_read_input_tokens", "cached_tokens") or 0,
        "cache_written_tokens": _number(usage, "cache_creation_input_tokens") or 0,
        "cache_written_1h_tokens": for_an_hour or 0,
    }


def _part(usage: dict[str, Any], name: str) -> dict[str, Any]:
    part = usage.get(name)
    return cast(dict[str, Any], part) if isinstance(part, dict) else {}


def _number(usage: dict[str, Any], *names: str) -> int | None:
    """Return the first of these members that is a plausible number of tokens."""
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
            return value
    return None
