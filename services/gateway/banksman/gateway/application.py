"""The ASGI application: every interface but the NATS API."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, WebSocket
from starlette.types import ASGIApp, Receive, Scope, Send

from banksman.contracts.errors import Unavailable
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.a2a import routes as a2a
from banksman.gateway.interfaces.agui import routes as agui
from banksman.gateway.interfaces.chat_formats import chat
from banksman.gateway.interfaces.http.documents import documents_router
from banksman.gateway.interfaces.http.routes import operation_routes
from banksman.gateway.interfaces.mcp import routes as mcp
from banksman.gateway.interfaces.page import routes as page
from banksman.gateway.interfaces.passthrough import models as usable_models
from banksman.gateway.interfaces.passthrough import routes as passthrough
from banksman.gateway.interfaces.passthrough.upstreams import Upstreams
from banksman.gateway.interfaces.websocket.connections import Connections
from banksman.gateway.operation import errors
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.service.dependencies import NOT_CONNECTED
from banksman.runtime.health import Health

VERSION = version("banksman")
PARTS = (
    page,
    chat,
    passthrough,
    usable_models,
    mcp,
    agui,
    a2a,
)
"""The modules of endpoints, in the order in which a path is looked up."""


def application(keys: Keys, upstreams: Upstreams, health: Health, dispatcher: Dispatcher) -> FastAPI:
    """Return the application without the websocket.

    What needs NATS responds with 503 until its state has `gateway`, `connections` and `asyncapi`.
    """
    app = FastAPI(
        title="Banksman",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.keys, app.state.upstreams = keys, upstreams
    app.state.dispatcher, app.state.services = dispatcher, dispatcher.services
    app.state.gateway = app.state.connections = app.state.asyncapi = None
    errors.install(app)
    app.router.routes.extend(health.routes())
    app.router.routes.extend(operation_routes(dispatcher.operations))
    for part in PARTS:
        # `include_router` would keep the routes of each router apart, build them again, and search twice.
        app.router.routes.extend(part.routes.routes)
    app.router.routes.extend(documents_router(lambda: _asyncapi(app)).routes)
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


def _asyncapi(app: FastAPI) -> Mapping[str, Any]:
    if app.state.asyncapi is None:
        raise Unavailable(NOT_CONNECTED)
    return app.state.asyncapi()
