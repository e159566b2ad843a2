"""A run as server-sent events, which contain the same frames as the websocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from banksman.contracts.frames import ChatSend, Detail
from banksman.gateway.live.followed_run import FollowedRun, followed_run
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.streaming import Stream
from banksman.gateway.service.gateway import Gateway


async def run_stream(gateway: Gateway, caller: Caller, request: ChatSend, detail: Detail) -> Stream:
    """Start a run and stream its events. A client that disconnects cancels the run that it started."""
    run = await followed_run(gateway, caller, request, detail)
    return run.stream(_events(run))


async def _events(run: FollowedRun) -> AsyncIterator[bytes]:
    async for frame in run.frames():
        yield _sse(frame)


def _sse(frame: str) -> bytes:
    head = json.loads(frame)
    number = f"id: {head['seq']}\n" if "seq" in head else ""
    return f"{number}event: {head['type']}\ndata: {frame}\n\n".encode()
