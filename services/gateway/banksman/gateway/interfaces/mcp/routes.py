"""`POST /mcp`: authenticates requests, which the SDK of the Model Context Protocol then serves."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from banksman.gateway.operation.caller import READ, Caller
from banksman.gateway.service.dependencies import ServiceDep, caller_of
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.routing import LazyRouter

routes = LazyRouter(tags=["mcp"])
_importing = asyncio.Lock()


# Not in the OpenAPI document: the Model Context Protocol defines the bodies.
@routes.post("/mcp", include_in_schema=False)
async def mcp(request: Request, gateway: ServiceDep) -> Response:
    """Serve a request of the Model Context Protocol (streamable HTTP, without sessions)."""
    caller = caller_of(request, "context")
    caller.need(*READ)
    await _import_sdk()
    return _McpResponse(gateway, caller, request.app.version)


class _McpResponse(Response):
    """The response that the SDK sends."""

    def __init__(self, gateway: Gateway, caller: Caller, version: str) -> None:
        self.background = None
        self._gateway = gateway
        self._caller = caller
        self._version = version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        from banksman.gateway.interfaces.mcp.server import serve

        await serve(self._gateway, self._caller, self._version, scope, receive, send)


async def _import_sdk() -> None:
    """Import the SDK in a thread: it takes a third of a second."""
    async with _importing:
        await asyncio.to_thread(_imported)


def _imported() -> None:
    # The SDK's `__init__` imports its client and all its servers.
    from banksman.gateway.interfaces.mcp import server as server
