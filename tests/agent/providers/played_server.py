"""A server that plays raw replies and records the requests, in the format of any vendor."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.agent.providers.histories import TOOLS, user
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.catalog import Providers
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage
from banksman.contracts.tools import ToolCall, ToolResult


@dataclass
class PlayedServer:
    url: str = ""
    replies: list[list[dict[str, Any]] | tuple[int, dict[str, Any]]] = field(default_factory=list)
    """The next replies: the events of a stream, or the status and the body of a refusal."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/api/"):
            # A question about the model, which may arrive at any time.
            return web.json_response({"error": "not found"}, status=404)
        self.bodies.append(await request.json())
        self.paths.append(request.path)
        reply = self.replies.pop(0)
        if isinstance(reply, tuple):
            return web.json_response(reply[1], status=reply[0])
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in reply)
        end = "data: [DONE]\n\n" if request.path.endswith("/chat/completions") else ""
        return web.Response(text=data + end, content_type="text/event-stream")


@asynccontextmanager
async def played_server() -> AsyncGenerator[PlayedServer]:
    played = PlayedServer()
    app = web.Application()
    app.router.add_post("/{path:.*}", played.handle)
    async with TestServer(app) as server:
        played.url = str(server.make_url("/v1"))
        yield played


def chat_chunks(*deltas: dict[str, Any], finish_reason: str = "stop") -> list[dict[str, Any]]:
    """Return the chunks of a chat completion."""
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}]


def in_history(reply: ModelReply, provider: str, number: int = 1) -> Iterable[Message]:
    """Yield a stored reply with its calls, and a result for each of them."""
    calls = tuple(
        ToolCall(
            id=f"k{number}{at}",
            name=call.name,
            arguments=json.loads(call.arguments or "{}")
            if isinstance(call.arguments, str)
            else call.arguments,
            provider_call_id=call.provider_call_id,
        )
        for at, call in enumerate(reply.calls)
    )
    yield AssistantMessage(
        message_id=f"a{number}",
        content=reply.text,
        calls=calls,
        provider=provider,
        provider_state=reply.provider_state,
    )
    for call in calls:
        yield ToolMessage(name=call.name, result=ToolResult(tool_call_id=call.id, content={"success": True}))


async def complete(
    providers: Providers, model: str, *history: Message, shown: Shown | None = None, **fields: Any
) -> ModelReply:
    """Send one message after `history`, with all tools unless `fields` of the request has others."""
    provider, name = providers.choose(model)
    request = ModelRequest(name, "Be brief.", (user("Hi"), *history), **{"tools": TOOLS, **fields})
    return await provider.complete(request, deltas=shown or Shown(), deadline_s=20)
