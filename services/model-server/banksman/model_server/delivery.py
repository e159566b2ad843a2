"""The wire formats of the vendors, each as the functions that parse its requests and write its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from banksman.model_server import anthropic_reply, openai_reply
from banksman.model_server.chat import ChatRequest, Dialect, Json, RequestRefused
from banksman.model_server.replies import EventStream, Reply
from banksman.model_server.requests import read_chat_completion, read_message, read_response

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorFormat:
    """One wire format. `refusal` receives the id of the request."""

    dialect: Dialect
    request_id_header: str
    required_header: str | None = None
    read: Callable[[Json], ChatRequest]
    body: Callable[[Reply, ChatRequest], bytes]
    events: Callable[[Reply, ChatRequest], EventStream]
    refusal: Callable[[RequestRefused, str], bytes]


CHAT_COMPLETIONS = VendorFormat(
    dialect="openai",
    request_id_header="x-request-id",
    read=read_chat_completion,
    body=openai_reply.completion,
    events=openai_reply.chunks,
    refusal=openai_reply.refusal,
)
RESPONSES = replace(
    CHAT_COMPLETIONS,
    dialect="responses",
    read=read_response,
    body=openai_reply.response,
    events=openai_reply.response_events,
)
"""Refusals have the format of chat completions."""
MESSAGES = VendorFormat(
    dialect="anthropic",
    request_id_header="request-id",
    required_header="anthropic-version",
    read=read_message,
    body=anthropic_reply.message,
    events=anthropic_reply.events,
    refusal=anthropic_reply.refusal,
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a client, and its response in the format of the request."""

    request: web.Request
    wire: VendorFormat
    request_id: str

    async def send(self, reply: Reply, chat: ChatRequest, *, delay_s: float) -> web.StreamResponse:
        """Send a reply; a stream waits `delay_s` seconds before each event."""
        if not chat.stream:
            return self.json(200, self.wire.body(reply, chat))
        stream = self.wire.events(reply, chat)
        response = await self.open_stream()
        await write(response, [*stream.content, *stream.closing], delay_s)
        await response.write_eof()
        return response

    async def open_stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS | self.headers)
        await response.prepare(self.request)
        return response

    def json(self, status: int, body: bytes) -> web.Response:
        return web.Response(
            status=status, body=body, headers=self.headers | {"content-type": "application/json"}
        )

    def refuse(self, refused: RequestRefused) -> web.Response:
        return self.json(refused.status, self.wire.refusal(refused, self.request_id))

    @property
    def headers(self) -> dict[str, str]:
        return {self.wire.request_id_header: self.request_id}


async def write(response: web.StreamResponse, pieces: Sequence[bytes], delay_s: float) -> None:
    """Write pieces with a pause of `delay_s` seconds before each; without a pause, in one write."""
    for piece in pieces if delay_s else [b"".join(pieces)]:
        await asyncio.sleep(delay_s)
        await response.write(piece)
