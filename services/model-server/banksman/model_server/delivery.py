"""The wire formats of the vendors, each as the functions that parse its requests and write its replies."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from aiohttp import web

from banksman.model_server import anthropic_reply, openai_reply
from banksman.model_server.chat import ChatRequest, Dialect, Json, RequestRefused, loads_object
from banksman.model_server.models import EventStream, ResolvedReply
from banksman.model_server.requests import read_chat_completion, read_message, read_response
from banksman.model_server.script import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    HalfJson,
    HttpError,
    RawReply,
    ScriptedReply,
    Silence,
    StreamError,
)

_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Gates:
    """Named gates that delay replies; an opened gate stays open."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def open(self, name: str) -> None:
        self._gates[name].set()

    async def passed(self, name: str) -> None:
        await self._gates[name].wait()


@dataclass(frozen=True, slots=True)
class ReplySender:
    request: web.Request
    wire: VendorFormat
    request_id: str
    gates: Gates

    async def send(
        self, reply: ScriptedReply, resolved: ResolvedReply, chat: ChatRequest
    ) -> web.StreamResponse:
        await self._wait_before_headers(reply)
        fault = reply.fault
        if isinstance(fault, StreamError) and not chat.stream:
            fault = HttpError(status=500, message=fault.message, error_type=fault.error_type)
        match fault:
            case HttpError():
                return self._error_status(fault)
            case ConnectionCut(after_events=0):
                return self._cut()
            case _ if chat.stream:
                return await self._stream(reply, resolved, chat)
            case ConnectionCut():
                return await self._half_body(self.wire.body(resolved, chat))
            case Silence():
                await asyncio.sleep(fault.duration_s)
                return self._cut()
            case _:
                body = self.wire.body(resolved, chat)
                return self._json(200, body[: len(body) // 2] if isinstance(fault, HalfJson) else body)

    async def send_raw(self, reply: RawReply) -> web.StreamResponse:
        response = web.StreamResponse(
            status=reply.status, headers={"content-type": reply.content_type} | self._id() | reply.headers
        )
        await response.prepare(self.request)
        await self._write(response, reply, [chunk.encode() for chunk in reply.raw_chunks])
        await response.write_eof()
        return response

    async def _wait_before_headers(self, reply: ScriptedReply) -> None:
        if reply.first_delay_s:
            await asyncio.sleep(reply.first_delay_s)
        if reply.gate is not None and reply.gate.after_events == 0:
            await self.gates.passed(reply.gate.name)

    async def _stream(
        self, reply: ScriptedReply, resolved: ResolvedReply, chat: ChatRequest
    ) -> web.StreamResponse:
        stream = self.wire.events(resolved, chat)
        events = stream.content + stream.closing
        response = web.StreamResponse(headers=_STREAM_HEADERS | self._id())
        await response.prepare(self.request)
        match reply.fault:
            case None:
                await self._write(response, reply, events)
            case EarlyEnd():
                await self._write(response, reply, stream.content)
            case fault:
                await self._write(response, reply, events[: _events_before(fault)])
                rest = events[_events_before(fault) :]
                await self._break(response, fault, rest[0] if rest else b"")
        if self.request.transport is not None and not self.request.transport.is_closing():
            await response.write_eof()
        return response

    async def _write(
        self, response: web.StreamResponse, reply: ScriptedReply | RawReply, pieces: list[bytes]
    ) -> None:
        joins = isinstance(reply, ScriptedReply) and not reply.chunk_delay_s
        if gate := reply.gate:
            await _write(response, pieces[: gate.after_events], reply.chunk_delay_s, joins=joins)
            await self.gates.passed(gate.name)
            pieces = pieces[gate.after_events :]
        await _write(response, pieces, reply.chunk_delay_s, joins=joins)

    async def _break(self, response: web.StreamResponse, fault: Fault, next_event: bytes) -> None:
        match fault:
            case ConnectionCut():
                self._cut()
            case StreamError():
                await response.write(self.wire.stream_error(fault, self.request_id))
            case HalfJson():
                await response.write(next_event[: len(next_event) // 2])
            case Silence():
                await asyncio.sleep(fault.duration_s)
                self._cut()
            case HttpError() | EarlyEnd():
                pass
            case _:
                assert_never(fault)

    async def _half_body(self, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"} | self._id())
        response.content_length = len(body)
        await response.prepare(self.request)
        await response.write(body[: len(body) // 2])
        self._cut()
        return response

    def _error_status(self, fault: HttpError) -> web.Response:
        body = fault.body.encode() if fault.body is not None else self.wire.http_error(fault, self.request_id)
        is_json = fault.body is None or loads_object(fault.body) is not None
        response = self._json(fault.status, body)
        response.content_type = "application/json" if is_json else "text/plain"
        if fault.retry_after_s is not None:
            response.headers["retry-after"] = f"{fault.retry_after_s:g}"
        return response

    def _json(self, status: int, body: bytes) -> web.Response:
        return web.Response(
            status=status, body=body, headers={"content-type": "application/json"} | self._id()
        )

    def _cut(self) -> web.Response:
        """Close the connection immediately. aiohttp requires a response, which is not sent."""
        if self.request.transport is not None:
            self.request.transport.abort()
        return web.Response()

    def _id(self) -> dict[str, str]:
        return {self.wire.request_id_header: self.request_id}


def _events_before(fault: Fault) -> int:
    return 0 if isinstance(fault, HttpError | EarlyEnd) else fault.after_events


async def _write(response: web.StreamResponse, pieces: list[bytes], delay_s: float, *, joins: bool) -> None:
    for piece in [b"".join(pieces)] if joins and pieces else pieces:
        if delay_s:
            await asyncio.sleep(delay_s)
        await response.write(piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorFormat:
    """One wire format. The functions for errors receive the id of the request."""

    dialect: Dialect
    request_id_header: str
    required_header: str | None = None
    read: Callable[[Json], ChatRequest]
    body: Callable[[ResolvedReply, ChatRequest], bytes]
    events: Callable[[ResolvedReply, ChatRequest], EventStream]
    refusal: Callable[[RequestRefused, str], bytes]
    http_error: Callable[[HttpError, str], bytes]
    stream_error: Callable[[StreamError, str], bytes]


CHAT_COMPLETIONS = VendorFormat(
    dialect="openai",
    request_id_header="x-request-id",
    read=read_chat_completion,
    body=openai_reply.completion,
    events=openai_reply.chunks,
    refusal=openai_reply.refusal,
    http_error=openai_reply.http_error,
    stream_error=openai_reply.stream_error,
)
RESPONSES = replace(
    CHAT_COMPLETIONS,
    dialect="responses",
    read=read_response,
    body=openai_reply.response,
    events=openai_reply.response_events,
    stream_error=openai_reply.response_error,
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
    http_error=anthropic_reply.http_error,
    stream_error=anthropic_reply.stream_error,
)
