"""The HTTP server and application of a gateway, which listens before NATS is connected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from banksman.contracts.errors import Unavailable
from banksman.gateway.composition import FEATURES, operations_of, request_rules, routes_of
from banksman.gateway.feature import Feature, Groundwork
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.http.perimeter import Perimeter, connection_limits, with_cors
from banksman.gateway.interfaces.passthrough.upstreams import Upstreams
from banksman.gateway.interfaces.websocket.connection import FRAME_BYTES, Connections
from banksman.gateway.interfaces.websocket.transport import RATE_LIMITED, TIMED_OUT
from banksman.gateway.operation import errors
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.intake import JsonIntake
from banksman.gateway.operation.parameters import NOT_CONNECTED, ServiceMap
from banksman.gateway.settings import GatewayServiceSettings
from banksman.library_internals.uvicorn_connections import OpenConnections, http_protocol
from banksman.library_internals.uvicorn_websockets import UnfinishedMessages, socket_protocol
from banksman.runtime.health import Health, health_server, listening

logger = logging.getLogger(__name__)

VERSION = version("banksman")

PING_EVERY_S = 20.0
"""Seconds between two pings of a websocket, which is closed if it does not reply before the next ping."""
FINISH_SHARE = 0.9
"""Share of `drain_s` in which open streams may finish; error events are sent in the rest."""


def application(health: Health, dispatcher: Dispatcher, routes: Iterable[BaseRoute]) -> FastAPI:
    """Return the application without the websocket.

    What needs NATS responds with 503 until its state has `connections` and `asyncapi`, and the dispatcher's
    services are complete.
    """
    app = FastAPI(
        title="Banksman",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.dispatcher, app.state.services = dispatcher, dispatcher.services
    app.state.keys = dispatcher.services.find(Keys)
    app.state.connections = app.state.asyncapi = None
    errors.install(app)
    app.router.routes.extend(health.public_routes())
    # `include_router` would keep the routes of each router apart, build them again, and search twice.
    app.router.routes.extend(routes)
    return app


def with_websocket(app: FastAPI) -> ASGIApp:
    """Serve `/ws` before FastAPI, whose layers would take a third of an idle websocket's memory."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or scope["path"] != "/ws":
            await app(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        connections: Connections | None = app.state.connections
        if connections is None:
            await socket.send_denial_response(errors.error_response("/ws", Unavailable(NOT_CONNECTED)))
            return
        await connections.serve(socket)

    return serve


@dataclass(frozen=True, slots=True)
class Front:
    """The HTTP server of a gateway. Until it joins NATS it serves health, the page and passthrough."""

    settings: GatewayServiceSettings
    health: Health
    app: FastAPI
    keys: Keys
    features: tuple[Feature, ...]
    dispatcher: Dispatcher
    port: int
    http: contextlib.AsyncExitStack
    """Closes the server after open requests have finished, before the objects that they use are closed."""

    def after_most_of_the_drain(self, end: Callable[[], None]) -> None:
        """Let open streams and waits finish for most of the drain time; then end the others with a reason."""
        asyncio.get_running_loop().call_later(self.settings.gateway.drain_s * FINISH_SHARE, end)


@asynccontextmanager
async def listening_front(
    settings: GatewayServiceSettings, health: Health, features: tuple[Feature, ...] = FEATURES
) -> AsyncGenerator[Front]:
    """Listen until the context ends.

    Raises:
        BadInput: A setting is missing.
        OSError: The port is taken.
    """
    keys = Keys(settings.gateway)
    async with contextlib.AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(
            Upstreams(settings.upstreams, health.background, timeout_s=settings.gateway.upstream_timeout_s)
        )
        services = ServiceMap()
        intake = await stack.enter_async_context(JsonIntake(settings.gateway.json_bytes_per_s))
        services.add(keys, upstreams, intake)
        dispatcher = Dispatcher(operations_of(features), services)
        groundwork = Groundwork(
            settings=settings, keys=keys, background=health.background, dispatcher=dispatcher, stack=stack
        )
        for feature in features:
            await feature.open(groundwork)
        app = application(health, dispatcher, routes_of(features))
        await stack.enter_async_context(health_server(health, settings.gateway))
        http = await stack.enter_async_context(contextlib.AsyncExitStack())
        perimeter = Perimeter(
            with_websocket(app),
            settings.gateway,
            keys,
            intake,
            dispatcher,
            request_rules(features),
        )
        port = await http.enter_async_context(
            listening(_http_config(with_cors(perimeter, settings.gateway), settings))
        )
        logger.info("listening", extra={"host": settings.gateway.host, "port": port, "keyless": keys.keyless})
        front = Front(settings, health, app, keys, features, dispatcher, port, http)
        http.callback(front.after_most_of_the_drain, upstreams.end)
        yield front


def _is_no_cut_stream(record: logging.LogRecord) -> bool:
    # uvicorn logs this if `StreamedResponse` closes a connection early; passthrough already logs the reason.
    return record.msg != "ASGI callable returned without completing response."


def _http_config(app: ASGIApp, settings: GatewayServiceSettings) -> uvicorn.Config:
    gateway = settings.gateway
    unfinished = UnfinishedMessages(
        gateway.message_timeout_s,
        gateway.max_unfinished_bytes,
        timed_out_code=TIMED_OUT,
        crowded_code=RATE_LIMITED,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut_stream)
    connections = OpenConnections(connection_limits(gateway))
    return uvicorn.Config(
        app,
        host=gateway.host,
        port=gateway.port,
        forwarded_allow_ips=list(gateway.trusted_proxies),
        http=http_protocol(connections),
        ws=socket_protocol(unfinished, connections),
        ws_max_size=FRAME_BYTES,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=PING_EVERY_S,
        # An idle websocket takes 25 KB without compression, and 122 KB with it.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        # At level info uvicorn logs each websocket's URL, tickets included.
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(gateway.drain_s),
    )
