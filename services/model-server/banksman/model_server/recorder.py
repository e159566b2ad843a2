from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from banksman.model_server.chat import Dialect
from banksman.model_server.json_values import Json, loads_object
from banksman.model_server.models import script_name

Outcome = Literal["open", "completed", "refused", "faulted", "disconnected"]
"""How a request ended.

- `open`: the reply is not complete
- `completed`: the whole reply was sent
- `refused`: status 400 or 404
- `faulted`: the script's fault was applied
- `disconnected`: the client closed the connection first
"""

_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "cookie"})
_MAX_REQUESTS = 5_000
_MAX_VIOLATIONS = 1_000


@dataclass(slots=True)
class RecordedRequest:
    """One request as received, and its outcome."""

    number: int
    """1 for the first request of the server."""
    dialect: Dialect
    path: str
    headers: dict[str, str]
    """Headers with lower-case names; secrets are replaced by `sha256:` and 12 digits of their digest."""
    raw: bytes = b""
    """The body's bytes."""
    model: str | None = None
    """The model that the request names."""
    outcome: Outcome = "open"

    @property
    def body(self) -> Json:
        """The decoded body; empty if it is not a JSON object."""
        return loads_object(self.raw) or {}

    @property
    def script(self) -> str | None:
        """Name of the script that the request's model names, or None."""
        return script_name(self.model) if self.model is not None else None


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that broke a rule of its vendor's format; the vendor would respond with 400."""

    dialect: Dialect
    model: str | None
    message: str
    param: str | None


class Recorder:
    """Stores the last 5,000 requests, and notifies waiters of changes."""

    def __init__(self) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=_MAX_REQUESTS)
        self._count = 0
        self._changed = asyncio.Event()

    def begin(self, dialect: Dialect, path: str, headers: Mapping[str, str]) -> RecordedRequest:
        self._count += 1
        masked = {name.lower(): _masked(name.lower(), value) for name, value in headers.items()}
        request = RecordedRequest(self._count, dialect, path, masked)
        self._requests.append(request)
        return request

    def changed(self) -> None:
        """Notify waiters that a body was read or an outcome is known."""
        self._changed.set()
        self._changed = asyncio.Event()

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """Return the requests, oldest first, optionally of one script only."""
        return [request for request in self._requests if script is None or request.script == script]

    def clear(self) -> None:
        self._requests.clear()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition, evaluated after each change, is true. The caller sets the timeout."""
        while not condition():
            await self._changed.wait()


class Violations:
    """The last 1,000 violations."""

    def __init__(self) -> None:
        self._violations: deque[Violation] = deque(maxlen=_MAX_VIOLATIONS)

    def add(self, violation: Violation) -> None:
        self._violations.append(violation)

    def all(self) -> list[Violation]:
        return list(self._violations)

    def clear(self) -> None:
        self._violations.clear()


def _masked(name: str, value: str) -> str:
    if name not in _SECRET_HEADERS:
        return value
    scheme, _, secret = value.rpartition(" ")
    digest = "sha256:" + hashlib.sha256(secret.encode()).hexdigest()[:12]
    return f"{scheme} {digest}".lstrip()
