"""Floor: uvicorn with an application that accepts websockets and does nothing with them.

Run: uvicorn benchmarks.floors.websocket:app --loop uvloop --ws websockets
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Serve one connection until the client closes it. Any HTTP request gets an empty response."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][0]})
        while (await receive())["type"] != "websocket.disconnect":
            continue
    else:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
