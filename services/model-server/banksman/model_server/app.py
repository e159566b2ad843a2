"""The model server as a separate process."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from banksman.contracts.validation_errors import bad_input
from banksman.model_server import anthropic_reply, delivery, openai_reply
from banksman.model_server.chat import (
    ChatRequest,
    Json,
    RequestRefused,
    loads_object,
    model_not_found,
)
from banksman.model_server.models import ChosenReply, Models, ResolvedReply, resolve_reply
from banksman.model_server.script import RawReply, Script, ScriptedReply, ScriptName
from banksman.model_server.settings import ModelServerSection, ModelServerSettings
from banksman.runtime import event_loop
from banksman.runtime.settings import load

_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])


def run(host: str | None = None, port: int | None = None, *, scripts: Path | None = None) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code. Arguments override settings.

    Raises:
        BadInput: a setting or a script is invalid.
        OSError: the port is in use, or the scripts cannot be read.
    """
    given = {"host": host, "port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load(ModelServerSettings).model_server.model_copy(update=chosen)
    event_loop.run(_serve(settings, _read(scripts) if scripts else {}))
    return 0


async def _serve(settings: ModelServerSection, scripts: Mapping[str, Script]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    routes = ModelRoutes(Models(settings.chunk_delay_s, scripts))
    async with serving(routes, settings.host, settings.port) as url:
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
async def serving(routes: ModelRoutes, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Serve in the running event loop until the context ends; yields the URL. Port 0 selects a free port."""
    runner = web.AppRunner(
        routes.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield f"http://{host}:{site.port}"
    finally:
        await runner.cleanup()


_MAX_BODY_BYTES = 64 * 1024 * 1024


class ModelRoutes:
    """The routes of the server. A server for tests extends the methods without an underscore."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.gates = delivery.Gates()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        self.add_routes(app)
        app.router.add_route("*", "/{path:.*}", _unknown_url)
        return app

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", partial(self.respond, delivery.CHAT_COMPLETIONS))
        app.router.add_post("/v1/responses", partial(self.respond, delivery.RESPONSES))
        app.router.add_post("/v1/messages", partial(self.respond, delivery.MESSAGES))
        app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{model:.+}", self._read_model)
        for path in ("/", "/healthz", "/readyz"):
            app.router.add_get(path, _ok)

    async def respond(self, wire: delivery.VendorFormat, request: web.Request) -> web.StreamResponse:
        request_id = _new_request_id()
        try:
            body = await _body(request)
            if wire.required_header and wire.required_header not in request.headers:
                raise RequestRefused(f"{wire.required_header}: header is required")
            chat = self.read(wire, body)
            sender = delivery.ReplySender(request, wire, request_id, self.gates)
            return await self.deliver(self.models.reply(chat), chat, sender)
        except RequestRefused as refused:
            return self.refuse(refused, wire, request, request_id)
        except ConnectionResetError:
            # The client closed the connection between two writes.
            return web.Response()

    def read(self, wire: delivery.VendorFormat, body: Json) -> ChatRequest:
        """Return the request of a body; raise `RequestRefused` if the server cannot reply to it."""
        return wire.read(body)

    async def deliver(
        self, chosen: ChosenReply, chat: ChatRequest, sender: delivery.ReplySender
    ) -> web.StreamResponse:
        if isinstance(chosen.reply, RawReply):
            return await sender.send_raw(chosen.reply)
        return await sender.send(chosen.reply, self.resolve(chosen, chosen.reply, chat), chat)

    def resolve(self, chosen: ChosenReply, reply: ScriptedReply, chat: ChatRequest) -> ResolvedReply:
        return resolve_reply(reply, chat, derived_ids_of=chosen.derived_ids_of)

    def refuse(
        self, refused: RequestRefused, wire: delivery.VendorFormat, request: web.Request, request_id: str
    ) -> web.Response:
        """Return the response to a request that the server cannot reply to, in the vendor's format."""
        body = wire.refusal(refused, request_id)
        return _json_bytes(body, refused.status, {wire.request_id_header: request_id})

    async def _count_tokens(self, request: web.Request) -> web.Response:
        wire, request_id = delivery.MESSAGES, _new_request_id()
        try:
            chat = wire.read(await _body(request))
        except RequestRefused as refused:
            return self.refuse(refused, wire, request, request_id)
        return web.json_response({"input_tokens": chat.input_tokens}, headers={"request-id": request_id})

    async def _list_models(self, request: web.Request) -> web.Response:
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.models_page(self.models.names()))

    async def _read_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        wire: delivery.VendorFormat = (
            delivery.MESSAGES if _is_anthropic(request) else delivery.CHAT_COMPLETIONS
        )
        if name not in self.models.names():
            return self.refuse(model_not_found(name), wire, request, _new_request_id())
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.model_object(name))


def _new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


async def _body(request: web.Request) -> Json:
    body = loads_object(await request.read())
    if body is None:
        raise RequestRefused("We could not parse the JSON body of your request: expected a JSON object.")
    return body


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
