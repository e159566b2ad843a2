"""The model server as a separate process."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from banksman.contracts.validation_errors import bad_input
from banksman.model_server import anthropic_reply, openai_reply
from banksman.model_server.anthropic_reply import ThinkingChecks
from banksman.model_server.anthropic_request import parse_message
from banksman.model_server.chat import (
    Json,
    RequestRefused,
    ValidatedRequest,
    loads_object,
    model_not_found,
)
from banksman.model_server.delivery import (
    CHAT_COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Gates,
    ReplySender,
    VendorFormat,
)
from banksman.model_server.models import Models, resolve_reply
from banksman.model_server.recorder import (
    MAX_VIOLATIONS,
    AdminRoutes,
    Outcome,
    RecordedRequest,
    Recorder,
    Violation,
)
from banksman.model_server.script import RawReply, Script, ScriptName
from banksman.model_server.settings import ModelServerSection, ModelServerSettings
from banksman.runtime import event_loop
from banksman.runtime.settings import load

_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])


def run(
    host: str | None = None,
    port: int | None = None,
    *,
    recording: bool = False,
    scripts: Path | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code. Arguments override settings.

    Raises:
        BadInput: a setting or a script is invalid.
        OSError: the port is in use, or the scripts cannot be read.
    """
    given = {"host": host, "port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load(ModelServerSettings).model_server.model_copy(update=chosen)
    serve(settings, scripts, recording=recording)
    return 0


def serve(settings: ModelServerSection, scripts: Path | None, *, recording: bool) -> None:
    event_loop.run(_serve(settings, _read(scripts) if scripts else {}, recording=recording))


async def _serve(settings: ModelServerSection, scripts: Mapping[str, Script], *, recording: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(
        host=settings.host,
        port=settings.port,
        recording=recording,
        chunk_delay_s=settings.chunk_delay_s,
        scripts=scripts,
    ) as (url, _):
        sys.stdout.write(f"model server ready at {url}\n")
        sys.stdout.flush()
        await stop.wait()


def _read(file: Path) -> dict[str, Script]:
    try:
        return _SCRIPTS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise bad_input(error, str(file)) from error


_SHUTDOWN_S = 0.5


@asynccontextmanager
async def serving(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    recording: bool = False,
    chunk_delay_s: float = 0.0,
    scripts: Mapping[str, Script] | None = None,
) -> AsyncGenerator[tuple[str, ModelRoutes]]:
    """Serve in the running event loop until the context ends; yields the URL and the routes.

    Args:
        port: 0 selects a free port.
        recording: Whether requests are recorded and the routes for tests exist.
    """
    models = Models(chunk_delay_s)
    for name, script in (scripts or {}).items():
        models.load(name, script)
    routes = ModelRoutes(models, Recorder() if recording else None)
    runner = web.AppRunner(
        routes.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield f"http://{host}:{site.port}", routes
    finally:
        await runner.cleanup()


_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModelRoutes:
    models: Models
    recorder: Recorder | None
    violations: deque[Violation] = field(default_factory=lambda: deque(maxlen=MAX_VIOLATIONS))
    gates: Gates = field(default_factory=Gates)
    thinking: ThinkingChecks = field(default_factory=ThinkingChecks)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", partial(self._respond, CHAT_COMPLETIONS))
        app.router.add_post("/v1/responses", partial(self._respond, RESPONSES))
        app.router.add_post("/v1/messages", partial(self._respond, MESSAGES))
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._read_model)
        for path in ("/", "/healthz", "/readyz"):
            app.router.add_get(path, _ok)
        if self.recorder is not None:
            AdminRoutes(self.models, self.recorder, self.violations, self.gates).add_to(app)
        app.router.add_route("*", "/{path:.*}", _unknown_url)
        return app

    async def _respond(self, wire: VendorFormat, request: web.Request) -> web.StreamResponse:
        request_id = _new_request_id()
        recorded = self._begin(request, wire)
        outcome: Outcome = "disconnected"
        try:
            body = await self._body(request, recorded)
            if wire.required_header and wire.required_header not in request.headers:
                raise RequestRefused(f"{wire.required_header}: header is required")
            chat = wire.parse(body)
            self.thinking.check(chat)
            response, outcome = await self._deliver(chat, ReplySender(request, wire, request_id, self.gates))
            return response
        except RequestRefused as refused:
            outcome = "refused"
            return self._refuse(refused, wire, request_id, await request.read())
        except ConnectionResetError:
            # The client closed the connection between two writes.
            return web.Response()
        finally:
            self._end(recorded, outcome)

    async def _deliver(
        self, chat: ValidatedRequest, delivery: ReplySender
    ) -> tuple[web.StreamResponse, Outcome]:
        chosen = self.models.reply(chat)
        if isinstance(chosen.reply, RawReply):
            return await delivery.send_raw(chosen.reply), "completed"
        resolved = resolve_reply(chosen.reply, chat, derived_ids_of=chosen.derived_ids_of)
        self.thinking.sent(chat, resolved)
        response = await delivery.send(chosen.reply, resolved, chat)
        return response, "completed" if chosen.reply.fault is None else "faulted"

    async def _body(self, request: web.Request, recorded: RecordedRequest | None) -> Json:
        raw = await request.read()
        body = loads_object(raw)
        if recorded is not None and self.recorder is not None:
            recorded.raw, recorded.model = raw, _model(body)
            self.recorder.changed()
        if body is None:
            raise RequestRefused("We could not parse the JSON body of your request: expected a JSON object.")
        return body

    def _begin(self, request: web.Request, wire: VendorFormat) -> RecordedRequest | None:
        if self.recorder is None:
            return None
        return self.recorder.begin(wire.dialect, request.path, request.headers)

    def _end(self, recorded: RecordedRequest | None, outcome: Outcome) -> None:
        if recorded is not None and self.recorder is not None:
            recorded.outcome = outcome
            self.recorder.changed()

    def _refuse(
        self, refused: RequestRefused, wire: VendorFormat, request_id: str, raw: bytes
    ) -> web.Response:
        if refused.is_violation:
            model = _model(loads_object(raw))
            self.violations.append(Violation(wire.dialect, model, refused.message, refused.param))
        return _json_bytes(
            wire.refusal(refused, request_id), refused.status, {wire.request_id_header: request_id}
        )

    async def _count_tokens(self, request: web.Request) -> web.Response:
        wire, request_id = MESSAGES, _new_request_id()
        try:
            chat = parse_message(await self._body(request, None), counting=True)
        except RequestRefused as refused:
            return self._refuse(refused, wire, request_id, await request.read())
        return web.json_response({"input_tokens": chat.input_tokens}, headers={"request-id": request_id})

    async def _list_models(self, request: web.Request) -> web.Response:
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.models_page(self.models.names()))

    async def _read_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        wire: VendorFormat = MESSAGES if _is_anthropic(request) else CHAT_COMPLETIONS
        if name not in self.models.names():
            return self._refuse(model_not_found(name), wire, _new_request_id(), b"")
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.model_object(name))


def _new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def _model(body: Json | None) -> str | None:
    model = body.get("model") if body is not None else None
    return model if isinstance(model, str) else None


def _is_anthropic(request: web.Request) -> bool:
    return "anthropic-version" in request.headers


def _json_bytes(body: bytes, status: int, headers: dict[str, str]) -> web.Response:
    return web.Response(body=body, status=status, headers=headers | {"content-type": "application/json"})


async def _ok(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _unknown_url(request: web.Request) -> web.Response:
    message = f"Unknown request URL: {request.method} {request.path}. The API's paths begin with /v1/."
    refused = RequestRefused(message, code="unknown_url", status=404)
    return _json_bytes(openai_reply.refusal(refused, ""), 404, {})
