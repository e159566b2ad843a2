from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from banksman.model_server.delivery import Gates
from banksman.model_server.json_values import Json
from banksman.model_server.models import Models
from banksman.model_server.recorder import RecordedRequest, Recorder, Violations
from banksman.model_server.script import Script, ScriptName

_NAME: TypeAdapter[str] = TypeAdapter(ScriptName)


class _RequestsQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    script: str | None = None
    at_least: int = 0
    wait_s: float = Field(default=0.0, ge=0, le=60)


@dataclass(frozen=True, slots=True)
class _Admin:
    models: Models
    recorder: Recorder
    violations: Violations
    gates: Gates

    async def put_script(self, request: web.Request) -> web.Response:
        try:
            name = _NAME.validate_python(request.match_info["name"])
            script = Script.model_validate_json(await request.read())
        except ValidationError as invalid:
            return _invalid(invalid)
        return web.json_response({"model": self.models.load(name, script)})

    async def delete_script(self, request: web.Request) -> web.Response:
        self.models.unload(request.match_info["name"])
        return web.Response(status=204)

    async def get_requests(self, request: web.Request) -> web.Response:
        """Return the recorded requests, after waiting up to `wait_s` seconds for `at_least` of them."""
        try:
            query = _RequestsQuery.model_validate(dict(request.query))
        except ValidationError as invalid:
            return _invalid(invalid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.wait_s):
                await self.recorder.wait_until(
                    lambda: len(self.recorder.requests(query.script)) >= query.at_least
                )
        return web.json_response([_view(recorded) for recorded in self.recorder.requests(query.script)])

    async def delete_requests(self, _request: web.Request) -> web.Response:
        self.recorder.clear()
        return web.Response(status=204)

    async def get_violations(self, _request: web.Request) -> web.Response:
        return web.json_response([asdict(violation) for violation in self.violations.all()])

    async def delete_violations(self, _request: web.Request) -> web.Response:
        self.violations.clear()
        return web.Response(status=204)

    async def open_gate(self, request: web.Request) -> web.Response:
        self.gates.open(request.match_info["name"])
        return web.Response(status=204)


def add_admin_routes(
    app: web.Application, models: Models, recorder: Recorder, violations: Violations, gates: Gates
) -> None:
    """Add the routes for tests in other processes, which load scripts and read requests."""
    admin = _Admin(models, recorder, violations, gates)
    app.router.add_put("/scripts/{name}", admin.put_script)
    app.router.add_delete("/scripts/{name}", admin.delete_script)
    app.router.add_get("/requests", admin.get_requests)
    app.router.add_delete("/requests", admin.delete_requests)
    app.router.add_get("/violations", admin.get_violations)
    app.router.add_delete("/violations", admin.delete_violations)
    app.router.add_put("/gates/{name}", admin.open_gate)


def _invalid(invalid: ValidationError) -> web.Response:
    return web.Response(status=400, text=invalid.json(include_url=False), content_type="application/json")


def _view(recorded: RecordedRequest) -> Json:
    return {
        "number": recorded.number,
        "dialect": recorded.dialect,
        "script": recorded.script,
        "model": recorded.model,
        "path": recorded.path,
        "headers": recorded.headers,
        "body": recorded.body,
        "raw": recorded.raw.decode(errors="replace"),
        "outcome": recorded.outcome,
    }
