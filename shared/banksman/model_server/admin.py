from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from banksman.model_server.delivery import Gates
from banksman.model_server.json_values import Json
from banksman.model_server.models import Models
from banksman.model_server.recorder import RecordedRequest, Recorder, Violations
from banksman.model_server.script import Script, ScriptName

_MAX_WAIT_S = 60.0
_NAME: TypeAdapter[str] = TypeAdapter(ScriptName)


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
            return web.Response(status=400, text=invalid.json(), content_type="application/json")
        return web.json_response({"model": self.models.load(name, script)})

    async def delete_script(self, request: web.Request) -> web.Response:
        self.models.unload(request.match_info["name"])
        return web.Response(status=204)

    async def get_requests(self, request: web.Request) -> web.Response:
        """The recorded requests; `at_least` and `wait_s` wait until there are that many."""
        script = request.query.get("script")
        at_least = int(request.query.get("at_least", "0"))
        wait_s = min(float(request.query.get("wait_s", "0")), _MAX_WAIT_S)
        try:
            async with asyncio.timeout(wait_s):
                await self.recorder.wait_until(lambda: len(self.recorder.requests(script)) >= at_least)
        except TimeoutError:
            pass
        return web.json_response([_view(recorded) for recorded in self.recorder.requests(script)])

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
    """Add the routes by which tests in other processes load scripts and read what was asked."""
    admin = _Admin(models, recorder, violations, gates)
    app.router.add_put("/scripts/{name}", admin.put_script)
    app.router.add_delete("/scripts/{name}", admin.delete_script)
    app.router.add_get("/requests", admin.get_requests)
    app.router.add_delete("/requests", admin.delete_requests)
    app.router.add_get("/violations", admin.get_violations)
    app.router.add_delete("/violations", admin.delete_violations)
    app.router.add_put("/gates/{name}", admin.open_gate)


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
