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

- `open`: it is being answered
- `completed`: the whole reply was sent
- `refused`: status 400 or 404
- `faulted`: it met the fault of its script
- `disconnected`: the client closed the connection before the end
"""

_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "cookie"})
_KEPT_REQUESTS = 5_000
_KEPT_VIOLATIONS = 1_000


@dataclass(slots=True)
class RecordedRequest:
    """One request as it arrived, and how it ended."""

    number: int
    """1 for the first request of the server."""
    dialect: Dialect
    path: str
    headers: dict[str, str]
    """Names in lower case; of a secret only `sha256:` and the first 12 digits of its digest."""
    raw: bytes = b""
    """The body's bytes."""
    model: str | None = None
    """The model that the request names."""
    outcome: Outcome = "open"

    @property
    def body(self) -> Json:
        """The decoded body; empty when it is no JSON object."""
        return loads_object(self.raw) or {}

    @property
    def script(self) -> str | None:
        """The name of the script that the request asks for."""
        return script_name(self.model) if self.model is not None else None


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that broke a rule of its vendor's format; the vendor would answer 400."""

    dialect: Dialect
    model: str | None
    message: str
    param: str | None


class Recorder:
    """Keeps the last 5,000 requests, and wakes those who wait for one."""

    def __init__(self) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=_KEPT_REQUESTS)
        self._count = 0
        self._changed = asyncio.Event()

    def begin(self, dialect: Dialect, path: str, headers: Mapping[str, str]) -> RecordedRequest:
        """Record that a request arrived."""
        self._count += 1
        masked = {name.lower(): _masked(name.lower(), value) for name, value in headers.items()}
        request = RecordedRequest(self._count, dialect, path, masked)
        self._requests.append(request)
        return request

    def changed(self) -> None:
        """Wake those who wait: a body arrived, or an outcome is known."""
        self._changed.set()
        self._changed = asyncio.Event()

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """The requests, oldest first; those of one script when it is named."""
        return [request for request in self._requests if script is None or request.script == script]

    def clear(self) -> None:
        """Forget every request."""
        self._requests.clear()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait, without a deadline of its own, until recorded requests make the condition true."""
        while not holds():
            await self._changed.wait()


class Violations:
    """Keeps the last 1,000 violations."""

    def __init__(self) -> None:
        self._violations: deque[Violation] = deque(maxlen=_KEPT_VIOLATIONS)

    def add(self, violation: Violation) -> None:
        """Keep one."""
        self._violations.append(violation)

    def all(self) -> list[Violation]:
        """Every kept violation, oldest first."""
        return list(self._violations)

    def clear(self) -> None:
        """Forget them."""
        self._violations.clear()


def _masked(name: str, value: str) -> str:
    if name not in _SECRET_HEADERS:
        return value
    scheme, _, secret = value.rpartition(" ")
    digest = "sha256:" + hashlib.sha256(secret.encode()).hexdigest()[:12]
    return f"{scheme} {digest}".lstrip()
