"""Sends the replies of scripts, with their gates and faults."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from aiohttp import web

from banksman.model_server.chat import ChatRequest, loads_object
from banksman.model_server.delivery import Exchange, write
from banksman.model_server.replies import Reply
from tests.support.scripted_models.errors import http_error, stream_error
from tests.support.scripted_models.script import (
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


class Gates:
    """Named gates that delay replies; an opened gate stays open."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def open(self, name: str) -> None:
        """Release all current and future replies that wait at this gate."""
        self._gates[name].set()

    async def passed(self, name: str) -> None:
        """Wait until a gate is open."""
        await self._gates[name].wait()


@dataclass(frozen=True, slots=True)
class ReplySender:
    """Sends one reply."""

    exchange: Exchange
    gates: Gates

    async def send(self, scripted: ScriptedReply, reply: Reply, chat: ChatRequest) -> web.StreamResponse:
        """Send a reply or apply its fault."""
        await self._wait_before_headers(scripted)
        fault = scripted.fault
        if isinstance(fault, StreamError) and not chat.stream:
            fault = HttpError(status=500, message=fault.message, error_type=fault.error_type)
        match fault:
            case HttpError():
                return self._error_status(fault)
            case ConnectionCut(after_events=0):
                return self._cut()
            case _ if chat.stream:
                return await self._stream(scripted, reply, chat)
            case ConnectionCut():
                return await self._half_body(self.exchange.wire.body(reply, chat))
            case Silence():
                await asyncio.sleep(fault.duration_s)
                return self._cut()
            case _:
                body = self.exchange.wire.body(reply, chat)
                return self.exchange.json(
                    200, body[: len(body) // 2] if isinstance(fault, HalfJson) else body
                )

    async def send_raw(self, reply: RawReply) -> web.StreamResponse:
        """Send a literal response, each piece in its own write."""
        headers = {"content-type": reply.content_type} | self.exchange.headers | reply.headers
        response = web.StreamResponse(status=reply.status, headers=headers)
        await response.prepare(self.exchange.request)
        await self._write(response, reply, [chunk.encode() for chunk in reply.raw_chunks])
        await response.write_eof()
        return response

    async def _wait_before_headers(self, reply: ScriptedReply) -> None:
        if reply.first_delay_s:
            await asyncio.sleep(reply.first_delay_s)
        if reply.gate is not None and reply.gate.after_events == 0:
            await self.gates.passed(reply.gate.name)

    async def _stream(self, scripted: ScriptedReply, reply: Reply, chat: ChatRequest) -> web.StreamResponse:
        stream = self.exchange.wire.events(reply, chat)
        events = stream.content + stream.closing
        response = await self.exchange.open_stream()
        match scripted.fault:
            case None:
                await self._write(response, scripted, events)
            case EarlyEnd():
                await self._write(response, scripted, stream.content)
            case fault:
                await self._write(response, scripted, events[: _events_before(fault)])
                rest = events[_events_before(fault) :]
                await self._break(response, fault, rest[0] if rest else b"")
        transport = self.exchange.request.transport
        if transport is not None and not transport.is_closing():
            await response.write_eof()
        return response

    async def _write(
        self, response: web.StreamResponse, reply: ScriptedReply | RawReply, pieces: Sequence[bytes]
    ) -> None:
        if gate := reply.gate:
            await _write(response, pieces[: gate.after_events], reply)
            await self.gates.passed(gate.name)
            pieces = pieces[gate.after_events :]
        await _write(response, pieces, reply)

    async def _break(self, response: web.StreamResponse, fault: Fault, next_event: bytes) -> None:
        match fault:
            case ConnectionCut():
                self._cut()
            case StreamError():
                exchange = self.exchange
                await response.write(stream_error(fault, exchange.wire.dialect, exchange.request_id))
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
        headers = {"content-type": "application/json"} | self.exchange.headers
        response = web.StreamResponse(headers=headers)
        response.content_length = len(body)
        await response.prepare(self.exchange.request)
        await response.write(body[: len(body) // 2])
        self._cut()
        return response

    def _error_status(self, fault: HttpError) -> web.Response:
        exchange = self.exchange
        if fault.body is None:
            body, is_json = http_error(fault, exchange.wire.dialect, exchange.request_id), True
        else:
            body, is_json = fault.body.encode(), loads_object(fault.body) is not None
        response = exchange.json(fault.status, body)
        response.content_type = "application/json" if is_json else "text/plain"
        if fault.retry_after_s is not None:
            response.headers["retry-after"] = f"{fault.retry_after_s:g}"
        return response

    def _cut(self) -> web.Response:
        """Close the connection immediately. aiohttp requires a response, which is not sent."""
        if self.exchange.request.transport is not None:
            self.exchange.request.transport.abort()
        return web.Response()


def _events_before(fault: Fault) -> int:
    return 0 if isinstance(fault, HttpError | EarlyEnd) else fault.after_events


async def _write(
    response: web.StreamResponse, pieces: Sequence[bytes], reply: ScriptedReply | RawReply
) -> None:
    if isinstance(reply, RawReply):
        for piece in pieces:
            await write(response, [piece], reply.chunk_delay_s)
    elif pieces:
        await write(response, pieces, reply.chunk_delay_s)
