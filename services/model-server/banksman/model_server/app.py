"""The model server as a separate process."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from banksman.model_server import anthropic_reply, delivery, openai_reply
from banksman.model_server.chat import ChatRequest, Json, RequestRefused, loads_object, model_not_found
from banksman.model_server.demo_reply import demo_reply
from banksman.model_server.settings import ModelServerSection, ModelServerSettings
from banksman.runtime import event_loop
from banksman.runtime.settings import load

DEMO_MODEL = "demo"


def run(host: str | None = None, port: int | None = None) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code. Arguments override settings.

    Raises:
        BadInput: a setting is invalid.
        OSError: the port is in use.
    """
    given = {"host": host, "port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    event_loop.run(_serve(load(ModelServerSettings).model_server.model_copy(update=chosen)))
    return 0


async def _serve(settings: ModelServerSection) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(ModelRoutes(settings.chunk_delay_s), settings.host, settings.port) as url:
        sys.stdout.write(f"model server ready at {url}\n")
        sys.stdout.flush()
        await stop.wait()


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

    def __init__(self, chunk_delay_s: float) -> None:
        self._chunk_delay_s = chunk_delay_s

    def names(self) -> list[str]:
        return [DEMO_MODEL]

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
        exchange = _exchange(request, wire)
        try:
            body = await _body(request)
            if wire.required_header and wire.required_header not in request.headers:
                raise RequestRefused(f"{wire.required_header}: header is required")
            return await self.answer(self.read(wire, body), exchange)
        except RequestRefused as refused:
            return self.refuse(refused, exchange)
        except ConnectionResetError:
            # The client closed the connection between two writes.
            return web.Response()

    def read(self, wire: delivery.VendorFormat, body: Json) -> ChatRequest:
        """Return the request of a body; raise `RequestRefused` if the server cannot reply to it."""
        return wire.read(body)

    async def answer(self, chat: ChatRequest, exchange: delivery.Exchange) -> web.StreamResponse:
        """Send the model's reply; raise `RequestRefused` if there is no such model."""
        if chat.model != DEMO_MODEL:
            raise model_not_found(chat.model)
        reply, delay_s = demo_reply(chat, chunk_delay_s=self._chunk_delay_s)
        return await exchange.send(reply, chat, delay_s=delay_s)

    def refuse(self, refused: RequestRefused, exchange: delivery.Exchange) -> web.Response:
        """Return the response to a request that the server cannot reply to, in the vendor's format."""
        return exchange.refuse(refused)

    async def _count_tokens(self, request: web.Request) -> web.Response:
        exchange = _exchange(request, delivery.MESSAGES)
        try:
            chat = exchange.wire.read(await _body(request))
        except RequestRefused as refused:
            return self.refuse(refused, exchange)
        return web.json_response({"input_tokens": chat.input_tokens}, headers=exchange.headers)

    async def _list_models(self, request: web.Request) -> web.Response:
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.models_page(self.names()))

    async def _read_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name not in self.names():
            wire = delivery.MESSAGES if _is_anthropic(request) else delivery.CHAT_COMPLETIONS
            return self.refuse(model_not_found(name), _exchange(request, wire))
        reply = anthropic_reply if _is_anthropic(request) else openai_reply
        return web.json_response(reply.model_object(name))


def _exchange(request: web.Request, wire: delivery.VendorFormat) -> delivery.Exchange:
    return delivery.Exchange(request, wire, f"req_{uuid.uuid4().hex}")


async def _body(request: web.Request) -> Json:
    body = loads_object(await request.read())
    if body is None:
        raise RequestRefused("We could not parse the JSON body of your request: expected a JSON object.")
    return body


def _is_anthropic(request: web.Request) -> bool:
    return "anthropic-version" in request.headers


async def _ok(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _unknown_url(request: web.Request) -> web.Response:
    message = f"Unknown request URL: {request.method} {request.path}. The API's paths begin with /v1/."
    refused = RequestRefused(message, code="unknown_url", status=404)
    return web.json_response(body=openai_reply.refusal(refused, ""), status=404)
