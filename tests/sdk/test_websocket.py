"""The client over a websocket whose server is scripted frame by frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from banksman.contracts.frames import ConnectionLimits, Subscribed, Welcome
from banksman.sdk import Client, LogRestored, RemoteError, connect
from banksman.sdk.transports.subscriptions import BUFFERED_FRAMES
from tests.sdk.fake_gateway import first
from tests.support.timeouts import WAIT_TIMEOUT_S

Frame = dict[str, Any]
Respond = Callable[[Frame], list[Frame]]
WELCOME = Welcome(
    server_version="1",
    connection_id="w1",
    tenant="acme",
    user="ada",
    limits=ConnectionLimits(frame_bytes=1, inflight=1, rate=1),
)


class Script:
    """Replies to each frame of a client with the frames that `respond` returns."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.received: list[Frame] = []
        self.arrived = asyncio.Condition()

    async def serve(self, connection: ServerConnection) -> None:
        """Serve one client."""
        async for text in connection:
            frame = json.loads(text)
            async with self.arrived:
                self.received.append(frame)
                self.arrived.notify_all()
            replies = [WELCOME.model_dump()] if frame["type"] == "hello" else self.respond(frame)
            for reply in replies:
                await connection.send(json.dumps(reply))

    def of(self, kind: str) -> list[Frame]:
        """Return the received frames of a type."""
        return [frame for frame in self.received if frame["type"] == kind]


@asynccontextmanager
async def scripted(respond: Respond) -> AsyncGenerator[tuple[Client, Script]]:
    """A client of a scripted server."""
    script = Script(respond)
    async with serve(script.serve, "127.0.0.1", 0, subprotocols=[Subprotocol("banksman.v1")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"http://127.0.0.1:{port}", reconnect_s=(0.01, 0.02)) as client:
            yield client, script


def subscribed(frame: Frame, epoch: str = "e1") -> Frame:
    head = Subscribed(reply_to=frame["id"], conversation_id="c1", head_seq=9, oldest_seq=1, log_epoch=epoch)
    return head.model_dump()


def event(seq: int, epoch: str = "e1", *, prev_seq: int | None = None) -> Frame:
    return {
        "type": "workflow.progress",
        "seq": seq,
        "prev_seq": seq - 1 if prev_seq is None else prev_seq,
        "log_epoch": epoch,
        "ts": "2026-01-01T00:00:00+00:00",
        "conversation_id": "c1",
        "run_id": "c1-r1",
        "data": {"step": seq, "total": 9, "message": ""},
    }


def ack(frame: Frame, **fields: Any) -> Frame:
    return {"type": "ack", "reply_to": frame["id"], **fields}


async def test_a_second_follower_receives_a_conversation_from_its_start() -> None:
    """An event of the first subscription may arrive before the second one begins."""

    def respond(frame: Frame) -> list[Frame]:
        if frame["type"] != "subscribe":
            return [ack(frame)]
        if frame["after_seq"] == 1:
            return [subscribed(frame), event(2), event(3)]
        return [event(4), subscribed(frame), *(event(seq) for seq in range(1, 5))]

    async with scripted(respond) as (client, _), aclosing(client.follow("c1", 1)) as one:
        begun = await first(2, one)
        async with aclosing(client.follow("c1")) as two:
            whole = await first(4, two)
        begun += await first(1, one)

    assert [frame.seq for frame in begun] == [2, 3, 4]
    assert [frame.seq for frame in whole] == [1, 2, 3, 4]


async def test_a_gap_is_read_again_from_the_last_event() -> None:
    def respond(frame: Frame) -> list[Frame]:
        if frame["type"] == "subscribe" and frame["after_seq"] == 0:
            return [subscribed(frame), event(1), event(3)]
        return [subscribed(frame), event(2), event(3)] if frame["type"] == "subscribe" else [ack(frame)]

    async with scripted(respond) as (client, script), aclosing(client.follow("c1")) as events:
        assert [frame.seq for frame in await first(3, events)] == [1, 2, 3]
    assert [frame["after_seq"] for frame in script.of("subscribe")] == [0, 1]


async def test_a_slow_reader_reads_later_events_from_the_log() -> None:
    last = 2 * BUFFERED_FRAMES + 500

    def respond(frame: Frame) -> list[Frame]:
        if frame["type"] != "subscribe":
            return [ack(frame)]
        return [subscribed(frame), *(event(seq) for seq in range(frame["after_seq"] + 1, last + 1))]

    async with scripted(respond) as (client, script), aclosing(client.follow("c1")) as events:
        begun = await first(1, events)
        await client.ready(WAIT_TIMEOUT_S)
        seqs = [frame.seq for frame in begun + await first(last - 1, events)]
    assert seqs == [*range(1, last + 1)]
    assert len(script.of("subscribe")) > 1


async def test_a_restored_log_ends_its_followers_and_can_be_followed_again() -> None:
    def respond(frame: Frame) -> list[Frame]:
        if frame["type"] != "subscribe":
            return [ack(frame)]
        epochs = ["e1", "e2"] if len(script.of("subscribe")) == 1 else ["e2", "e2"]
        return [subscribed(frame, epochs[0]), *(event(seq, epoch) for seq, epoch in enumerate(epochs, 1))]

    async with scripted(respond) as (client, script):
        async with aclosing(client.follow("c1")) as events:
            with pytest.raises(LogRestored):
                await first(2, events)
        async with aclosing(client.follow("c1")) as events:
            assert [frame.log_epoch for frame in await first(2, events)] == ["e2", "e2"]


async def test_a_request_that_is_refused_for_the_moment_is_sent_again_under_its_id() -> None:
    busy = {"type": "error", "code": "busy", "message": "later", "retryable": True, "retry_after_s": 0.01}

    def respond(frame: Frame) -> list[Frame]:
        again = len(script.of("chat.send")) > 1
        return [ack(frame, run_id="c1-r1") if again else {**busy, "reply_to": frame["id"]}]

    async with scripted(respond) as (client, script):
        assert (await client.send("c1", "hello")).run_id == "c1-r1"
    assert len({frame["id"] for frame in script.of("chat.send")}) == 1


async def test_a_created_conversation_takes_no_subscription_until_it_is_followed() -> None:
    async with scripted(lambda frame: [ack(frame, conversation_id="c1")]) as (client, script):
        await client.create_conversation()
        async with asyncio.timeout(WAIT_TIMEOUT_S), script.arrived:
            await script.arrived.wait_for(lambda: script.of("unsubscribe"))
    assert script.of("unsubscribe")[0]["conversation_id"] == "c1"


async def test_a_conversation_that_cannot_be_read_raises_the_gateways_error() -> None:
    missing = {"type": "error", "code": "not_found", "message": "no conversation with id 'c1'"}

    async with (
        scripted(lambda frame: [{**missing, "reply_to": frame["id"]}]) as (client, _),
        aclosing(client.follow("c1")) as events,
    ):
        with pytest.raises(RemoteError, match="no conversation"):
            await first(1, events)
