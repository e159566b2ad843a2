"""The recorded requests of a model server for tests, and its routes for tests in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from banksman.model_server.chat import Dialect, Json, loads_object
from tests.support.scripted_models import Script, ScriptName
from tests.support.scripted_models.delivery import Gates
from tests.support.scripted_models.playing import Scripts, script_name

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


@dataclass(slots=True)
class RecordedRequest:
    """One request and what became of it."""

    number: int
    dialect: Dialect
    path: str
    headers: dict[str, str]
    """Headers with lower-case names; secrets are replaced by `sha256:` and 12 digits of their digest."""
    raw: bytes = b""
    model: str | None = None
    outcome: Outcome = "open"

    @property
    def body(self) -> Json:
        """The JSON of the request; empty if it has none."""
        return loads_object(self.raw) or {}

    @property
    def script(self) -> str | None:
        """The name of the script that it asked for; None for another model."""
        return script_name(self.model) if self.model is not None else None


class Recorder:
    """Stores the last 5,000 requests."""

    def __init__(self) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=_MAX_REQUESTS)
        self._count = 0
        self._changed = asyncio.Event()

    def begin(self, dialect: Dialect, path: str, headers: Mapping[str, str]) -> RecordedRequest:
        """Add a request, whose secrets are masked, and return its record."""
        self._count += 1
        masked = {name.lower(): _masked(name.lower(), value) for name, value in headers.items()}
        request = RecordedRequest(self._count, dialect, path, masked)
        self._requests.append(request)
        return request

    def changed(self) -> None:
        """Wake those who wait, after a change of a record."""
        self._changed.set()
        self._changed = asyncio.Event()

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """Return the recorded requests, oldest first, optionally of one script only."""
        return [request for request in self._requests if script is None or request.script == script]

    def clear(self) -> None:
        """Remove all records."""
        self._requests.clear()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition, evaluated after each change, is true. The caller sets the timeout."""
        while not condition():
            await self._changed.wait()


def _masked(name: str, value: str) -> str:
    if name not in _SECRET_HEADERS:
        return value
    scheme, _, secret = value.rpartition(" ")
    digest = "sha256:" + hashlib.sha256(secret.encode()).hexdigest()[:12]
    return f"{scheme} {digest}".lstrip()


_NAME: TypeAdapter[str] = TypeAdapter(ScriptName)


class _RequestsQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    script: str | None = None
    at_least: int = 0
    wait_s: float = Field(default=0.0, ge=0, le=60)


@dataclass(frozen=True, slots=True)
class AdminRoutes:
    """Loads scripts, returns recorded requests and opens gates, over HTTP.

    `PUT /scripts/{name}` takes the JSON of a `Script` and returns the name of its model; `DELETE` removes it.
    `GET /requests?script=&at_least=&wait_s=` returns requests, after waiting for that many. `DELETE` removes
    the records. `PUT /gates/{name}` opens a gate.
    """

    scripts: Scripts
    recorder: Recorder
    gates: Gates

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application."""
        app.router.add_put("/scripts/{name}", self._put_script)
        app.router.add_delete("/scripts/{name}", self._delete_script)
        app.router.add_get("/requests", self._get_requests)
        app.router.add_delete("/requests", self._delete_requests)
        app.router.add_put("/gates/{name}", self._open_gate)

    async def _put_script(self, request: web.Request) -> web.Response:
        try:
            name = _NAME.validate_python(request.match_info["name"])
            script = Script.model_validate_json(await request.read())
        except ValidationError as invalid:
            return _invalid(invalid)
        return web.json_response({"model": self.scripts.load(name, script)})

    async def _delete_script(self, request: web.Request) -> web.Response:
        self.scripts.unload(request.match_info["name"])
        return web.Response(status=204)

    async def _get_requests(self, request: web.Request) -> web.Response:
        try:
            query = _RequestsQuery.model_validate(dict(request.query))
        except ValidationError as invalid:
            return _invalid(invalid)
        matching = partial(self.recorder.requests, query.script)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.wait_s):
                await self.recorder.wait_until(lambda: len(matching()) >= query.at_least)
        return web.json_response([_view(recorded) for recorded in matching()])

    async def _delete_requests(self, _request: web.Request) -> web.Response:
        self.recorder.clear()
        return web.Response(status=204)

    async def _open_gate(self, request: web.Request) -> web.Response:
        self.gates.open(request.match_info["name"])
        return web.Response(status=204)


def _invalid(invalid: ValidationError) -> web.Response:
    return web.Response(status=400, text=invalid.json(include_url=False), content_type="application/json")


def _view(recorded: RecordedRequest) -> Json:
    raw = recorded.raw.decode(errors="replace")
    return asdict(recorded) | {"script": recorded.script, "body": recorded.body, "raw": raw}
