"""A run as server-sent events: the frames that the websocket would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from banksman.contracts.frames import ChatSend, Detail, RunCancel
from banksman.contracts.ids import new_id
from banksman.gateway.asgi.streaming import SSE_HEADERS, Stream, kept_alive
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.feed import Feed
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.service.outbox import Outbox

REASON = "The client closed the connection."


async def run_stream(gateway: Gateway, caller: Caller, request: ChatSend, detail: Detail) -> Stream:
    """Start a run and stream its events. A client that disconnects cancels the run that it started."""
    outbox = Outbox()
    await gateway.conversations.get(caller.tenant, request.conversation_id)
    early = await _feed(gateway, caller, request.conversation_id, None, detail, outbox)
    # Before the start: an agent may send the first deltas before the start is acknowledged.
    await early.listen()
    try:
        ack = await gateway.requests.handle(caller, request)
        run_id = ack.run_id or ""
        feed = await _from_first_event(gateway, caller, run_id, early, detail, outbox)
    except BaseException:
        await early.close()
        raise
    if feed is not early:
        await early.close()
    feed.only(run_id)

    async def cancel() -> None:
        if not feed.ended.is_set():
            frame = RunCancel(type="run.cancel", id=new_id("disconnect-"), run_id=run_id, reason=REASON)
            await gateway.requests.handle(caller, frame)

    headers = {**SSE_HEADERS, "location": f"/context/runs/{run_id}", "banksman-run-id": run_id}
    events = kept_alive(_events(feed, outbox))
    return Stream(events, headers=headers, on_disconnect=cancel, on_end=feed.close)


async def _from_first_event(
    gateway: Gateway, caller: Caller, run_id: str, early: Feed, detail: Detail, outbox: Outbox
) -> Feed:
    """Return the feed to use: a repeated request may name a run whose events precede `early`."""
    view = await gateway.views.read(caller.tenant, early.conversation_id)
    run = view.runs.get(run_id)
    if run is None or run.first_seq > early.head.head_seq:
        return early
    return await _feed(gateway, caller, early.conversation_id, run.first_seq - 1, detail, outbox)


async def _feed(
    gateway: Gateway,
    caller: Caller,
    conversation_id: str,
    after_seq: int | None,
    detail: Detail,
    outbox: Outbox,
) -> Feed:
    return await gateway.feeds.open(
        caller.tenant, conversation_id, after_seq=after_seq, log_epoch=None, detail=detail, sink=outbox
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
