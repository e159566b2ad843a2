"""Replies of scripted models as Backboard streams them; `backboard.py` states the source of the format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, assert_never

from aiohttp import web

from tests.support.polling import scripted_delay
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    HalfJson,
    HttpError,
    RawReply,
    ScriptedReply,
    ScriptedUsage,
    Silence,
    StreamError,
)

Json = dict[str, Any]


def events(reply: ScriptedReply, run_id: str) -> list[Json]:
    """Return the events that Backboard streams for a run, or for its continuation."""
    events: list[Json] = [{"type": "run_started", "run_id": run_id}]
    reasoning = ""
    for piece in _pieces(reply.reasoning, reply.chunk_chars):
        reasoning += piece
        events.append({"type": "reasoning_streaming", "content": piece, "accumulated_reasoning": reasoning})
    events += [
        {"type": "content_streaming", "content": piece} for piece in _pieces(reply.text, reply.chunk_chars)
    ]
    if not reply.tool_calls:
        return [*events, {"type": "run_ended", "status": "completed", "run_id": run_id, **_usage(reply)}]
    calls = [
        {
            "id": call.id or f"call_{number}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.arguments
                if isinstance(call.arguments, str)
                else json.dumps(call.arguments),
            },
        }
        for number, call in enumerate(reply.tool_calls, 1)
    ]
    return [
        *events,
        {"type": "tool_submit_required", "run_id": run_id, "tool_calls": calls, **_usage(reply)},
    ]


def _pieces(text: str, size: int | None) -> Sequence[str]:
    step = size or 8
    return [text[start : start + step] for start in range(0, len(text), step)]


def _usage(reply: ScriptedReply) -> Json:
    if not isinstance(reply.usage, ScriptedUsage):
        return {}
    usage = reply.usage
    total = usage.input_tokens + usage.output_tokens
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "total_tokens": total}


def events_before(reply: ScriptedReply, count: int) -> int:
    """Return how many events precede the reply's fault; all of them without a fault."""
    match reply.fault:
        case None:
            return count
        case EarlyEnd():
            return count - 1
        case HttpError():
            return 0
        case fault:
            return min(fault.after_events, count - 1)


async def break_off(
    request: web.Request, response: web.StreamResponse, reply: ScriptedReply, event: Json
) -> None:
    """End a stream with the reply's fault, in place of `event`."""
    match reply.fault:
        case None | HttpError():
            pass
        case EarlyEnd():
            await response.write_eof()
        case StreamError() as fault:
            await response.write(sse({"type": "run_failed", "error": fault.message}))
            await response.write_eof()
        case HalfJson():
            await response.write(sse(event)[:20])
            await response.write_eof()
        case ConnectionCut():
            _cut(request)
        case Silence() as fault:
            await scripted_delay(fault.duration_s)
            _cut(request)
        case _:
            assert_never(reply.fault)


async def send_raw(request: web.Request, reply: RawReply) -> web.StreamResponse:
    """Respond with a raw body."""
    response = web.StreamResponse(status=reply.status, headers={"content-type": reply.content_type})
    await response.prepare(request)
    for chunk in reply.raw_chunks:
        await response.write(chunk.encode())
    await response.write_eof()
    return response


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def error(fault: HttpError) -> web.Response:
    """Return an error response."""
    headers = {} if fault.retry_after_s is None else {"retry-after": f"{fault.retry_after_s:g}"}
    return web.json_response({"detail": fault.message}, status=fault.status, headers=headers)


def sse(event: Json) -> bytes:
    """Encode one server-sent event."""
    return f"data: {json.dumps(event)}\n\n".encode()
