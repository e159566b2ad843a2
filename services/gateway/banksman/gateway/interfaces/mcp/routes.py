"""`POST /mcp`: authenticates requests, which the SDK of the Model Context Protocol then serves."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from banksman.gateway.feature import Feature
from banksman.gateway.interfaces.mcp.tools import Platform
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import READ
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.library_internals.python_imports import defer

operations = Operations("mcp", right=READ)
_importing = asyncio.Lock()


# Not in the OpenAPI document: the Model Context Protocol defines the bodies.
@operations.add(
    "mcp.serve",
    "POST /mcp",
    include_in_schema=False,
    not_over_nats="streamable HTTP of the Model Context Protocol",
)
async def mcp(
    request: Request,
    dispatcher: Annotated[Dispatcher, provided(Dispatcher)],
    feeds: Annotated[Feeds, provided(Feeds)],
    caller: CallerDep,
) -> Response:
    """Serve a request of the Model Context Protocol (streamable HTTP, without sessions)."""
    await _import_sdk()
    # Read here, where a body that is refused gets its error; the SDK would respond with 500.
    body = await request.body()
    return _McpResponse(Platform(dispatcher, feeds, caller), request.app.version, body)


class _McpResponse(Response):
    def __init__(self, platform: Platform, version: str, body: bytes) -> None:
        self.background = None
        self._platform = platform
        self._version = version
        self._received: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from banksman.gateway.interfaces.mcp.server import serve

        async def received() -> Message:
            return self._received.pop() if self._received else await receive()

        await serve(self._platform, self._version, scope, received, send)


async def _import_sdk() -> None:
    """Import the SDK in a thread: it takes a third of a second."""
    async with _importing:
        await asyncio.to_thread(_imported)


def _imported() -> None:
    # The SDK's `__init__` imports its client and all its servers.
    defer("mcp")
    from banksman.gateway.interfaces.mcp import server as server


FEATURE = Feature(operations)
