"""A run as server-sent events: the frames that the websocket would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from banksman.contracts.frames import ChatSend, Detail, RunCancel
from banksman.contracts.ids import new_id
from banksman.gateway.asgi.streaming import SSE_HEADERS, Stream, kept_alive
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.feeds import Feed
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.outbox import Outbox

REASON = "The client closed the connection."


async def run_stream(gateway: Gateway, caller: Caller, request: ChatSend, detail: Detail) -> Stream:
    """Start a run and stream it; a client that disconnects cancels the run it started."""
    outbox = Outbox()
    await gateway.service.conversations.get(caller.tenant, request.conversation_id)
    before = await gateway.fanout.feed(
        caller.tenant,
        request.conversation_id,
        after_seq=None,
        log_epoch=None,
        detail=detail,
        sink=outbox,
    )
    await before.listen()  # the model may be writing before the answer to the request is here
    try:
        ack = await gateway.service.answer(caller, request)
        run_id = ack.run_id or ""
        feed = await _from_the_start(gateway, caller, run_id, before, detail, outbox)
    except BaseException:
        await before.close()
        raise
    if feed is not before:
        await before.close()
    feed.only(run_id)

    async def gone() -> None:
        if not feed.ended.is_set():
            cancel = RunCancel(type="run.cancel", id=new_id("gone-"), run_id=run_id, reason=REASON)
            await gateway.service.answer(caller, cancel)

    headers = {**SSE_HEADERS, "location": f"/context/runs/{run_id}", "banksman-run-id": run_id}
    return Stream(kept_alive(_events(feed, outbox)), headers=headers, gone=gone, closed=feed.close)


async def _from_the_start(
    gateway: Gateway, caller: Caller, run_id: str, before: Feed, detail: Detail, outbox: Outbox
) -> Feed:
    """The feed from before the run; from further back when a repeated request asks for a run of the past."""
    view = await gateway.service.views.read(caller.tenant, before.conversation_id)
    run = view.runs.get(run_id)
    if run is None or run.asked_seq > before.head.head_seq:
        return before
    return await gateway.fanout.feed(
        caller.tenant,
        before.conversation_id,
        after_seq=run.asked_seq - 1,
        log_epoch=None,
        detail=detail,
        sink=outbox,
    )


async def _events(feed: Feed, outbox: Outbox) -> AsyncIterator[bytes]:
    following = asyncio.create_task(feed.follow(quiet=True))
    try:
        while not (feed.ended.is_set() and outbox.empty) and not outbox.overflowed.is_set():
            yield _sse(await outbox.next())
    finally:
        following.cancel()
        await asyncio.wait((following,))


def _sse(frame: str) -> bytes:
    head = json.loads(frame)
    number = f"id: {head['seq']}\n" if "seq" in head else ""
    return f"{number}event: {head['type']}\ndata: {frame}\n\n".encode()
