"""The ASGI application: every interface but the NATS API."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from fastapi import FastAPI, WebSocket
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from banksman.contracts.errors import Unavailable
from banksman.gateway.identity.auth import Keys
from banksman.gateway.interfaces.websocket.connection import Connections
from banksman.gateway.operation import errors
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import NOT_CONNECTED
from banksman.runtime.health import Health

VERSION = version("banksman")


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
    app.router.routes.extend(health.routes())
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
