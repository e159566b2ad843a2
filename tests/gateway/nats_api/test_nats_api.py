from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from tests.gateway.conftest import Agent, GatewayFactory, Served
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.errors import RemoteError
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.frames import REQUEST_ID
from banksman.contracts.ids import new_id
from banksman.contracts.live_output import Delta
from banksman.contracts.work import DeadLetter
from banksman.gateway.interfaces.nats.replays import MAX_FOLLOWING
from banksman.sdk.client import Client, StartedRun
from banksman.sdk.events import EventFrame
from banksman.sdk.transports.nats import NatsTransport


@pytest.fixture
async def client(gateway: Served, bus: Bus, tenant: str) -> AsyncGenerator[Client]:
    yield Client(NatsTransport(bus, tenant))


async def test_a_nats_client_starts_a_run_and_reads_its_events(client: Client, agent: Agent) -> None:
    """R114"""
    conversation = await client.create_conversation(title="From a service")
    run = await client.send(conversation, "hi", request_id="once")
    assert await client.send(conversation, "hi", request_id="once") == run
    start = await agent.started(conversation)
    await agent.begin(start)
    await agent.finish(start, "Done.")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        outcome = await client.outcome(run)
    assert (start.run_id, start.user, outcome.content) == (run.run_id, "nats", "Done.")


async def test_a_cancel_of_an_unknown_run_over_nats_is_refused(client: Client) -> None:
    conversation = await client.create_conversation()
    with pytest.raises(RemoteError) as refused:
        await client.cancel(f"{conversation}-aaaaaaaaaaaa")
    assert refused.value.code == "not_found"


async def test_a_replay_during_the_first_commit_has_one_log_epoch(
    client: Client, agent: Agent, bus: Bus
) -> None:
    """Events that are stored during a replay have the same epoch in every later read."""

    async def followed(run: StartedRun) -> list[EventFrame]:
        async with (
            deadline("the client did not receive four events"),
            aclosing(client.follow(run.conversation_id)) as events,
        ):
            return [await anext(events) for _ in range(4)]

    async def played(run: StartedRun, round_trips: int) -> None:
        start = await agent.started(run.conversation_id)
        for _ in range(round_trips):
            await bus.ready()
        await agent.begin(start)
        await agent.finish(start)

    runs = [await client.send(await client.create_conversation(), "hi") for _ in range(100)]
    async with asyncio.timeout(30):
        for round_trips, run in enumerate(runs):
            async with asyncio.TaskGroup() as group:
                group.create_task(played(run, round_trips % 20))
                seen = await followed(run)
            assert [frame.seq for frame in seen] == [1, 2, 3, 4]
            assert {frame.log_epoch for frame in seen} == {agent.log_epoch}


async def test_an_approval_is_decided_over_nats(client: Client, agent: Agent) -> None:
    conversation = await client.create_conversation()
    await client.send(conversation, "list")
    request = await agent.request_approval(await agent.started(conversation))
    response = await client.reply(request.approval_id, all="approve")
    assert (response.already_resolved, response.outcome) == (False, "approved")


async def test_a_refused_nats_request_gets_an_error_frame(client: Client) -> None:
    with pytest.raises(RemoteError) as refused:
        await client.send("nobody", "hi")
    assert refused.value.code == "not_found"


async def test_a_body_that_contradicts_its_subject_is_refused(gateway: Served, bus: Bus, tenant: str) -> None:
    subject = subjects.api(tenant, "chat", "send", "c1")
    body = json.dumps({"conversation_id": "c2", "content": "hi"}).encode()
    response = json.loads(await bus.request(subject, body, 5))
    assert (response["type"], response["details"]["field"]) == ("error", "conversation_id")


async def replayed(
    bus: Bus, tenant: str, conversation: str, **request: Any
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the frames that a replay sends to its reply subject, until the empty message."""
    frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def received(message: Message) -> None:
        frames.put_nowait(message.data)

    inbox = new_id("inbox")
    subscription = await bus.subscribe(inbox, received)
    subject = subjects.api(tenant, "replay", conversation)
    await bus.nc.publish(subject, json.dumps(request).encode(), reply=inbox)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while data := await frames.get():
            yield json.loads(data)
    await subscription.unsubscribe()


async def test_live_and_replayed_frames_have_the_shape_of_the_websocket(
    gateway: Served, agent: Agent, bus: Bus, tenant: str
) -> None:
    """One subscription shows the stored events, then deltas and the events that are stored next."""
    async with gateway.socket() as socket:
        conversation = await socket.create(detail="steps")
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        await socket.until_type("iteration.started")
        following = replayed(bus, tenant, conversation, detail="steps", follow_s=60)
        async with aclosing(following):
            frames = [await anext(following) for _ in range(3)]
            ids: Any = {"conversation_id": conversation, "run_id": start.run_id}
            delta = Delta(message_id="m1", offset=0, text="He", **ids)
            await bus.publish(subjects.delta(tenant, conversation), delta.model_dump_json().encode())
            frames.append(await anext(following))
            await agent.finish(start)
            frames += [await anext(following) for _ in range(2)]
        await socket.until_type("run.finished")
    kinds = ["run.started", "iteration.started", "replay.done", "message.delta", "message.completed"]
    assert [frame["type"] for frame in frames] == [*kinds, "run.finished"]
    of_socket = [frame for frame in socket.frames if frame.get("seq") or frame["type"] == "message.delta"]
    live = [frame for frame in frames if frame["type"] != "replay.done"]
    assert [{**frame, "ts": ""} for frame in live] == [{**frame, "ts": ""} for frame in of_socket]


async def test_a_followed_conversation_ends_with_an_empty_message(
    gateway: Served, client: Client, bus: Bus, tenant: str
) -> None:
    """After its time; at once if the position does not exist; and when the gateway stops."""
    conversation = await client.create_conversation()
    ended = [frame async for frame in replayed(bus, tenant, conversation, follow_s=0.1)]
    beyond = [frame async for frame in replayed(bus, tenant, conversation, follow_s=60, after_seq=7)]
    assert [frame["type"] for frame in ended] == ["replay.done"]
    assert [frame["type"] for frame in beyond] == ["resync_required"]


async def test_a_stopping_gateway_ends_the_followers_of_conversations(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async with start_gateway():
        conversation = await Client(NatsTransport(bus, tenant)).create_conversation()
        following = replayed(bus, tenant, conversation, follow_s=60)
        assert (await anext(following))["type"] == "replay.done"
    assert [frame["type"] async for frame in following] == ["server.draining"]


async def test_a_tenant_follows_a_bounded_number_of_conversations(
    gateway: Served, client: Client, bus: Bus, tenant: str
) -> None:
    """Its other requests are still served."""
    conversation = await client.create_conversation()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_FOLLOWING):
            following = replayed(bus, tenant, conversation, follow_s=60)
            await stack.enter_async_context(aclosing(following))
            assert (await anext(following))["type"] == "replay.done"
        refused = await anext(replayed(bus, tenant, conversation, follow_s=60))
        assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "busy", True)
        assert await client.assistants()


async def test_a_failed_publish_with_a_secret_is_dead_lettered_without_it(
    gateway: Served, bus: Bus, tenant: str
) -> None:
    name = new_id("x")
    bodies = {
        subjects.api(tenant, "secret", "set", name): {"value": "a-secret-value", "unknown": 1},
        subjects.api(tenant, "mcp", "sign_in", name): {"client_secret": "a-secret-value"},
        # The error that its sender gets shows the value.
        subjects.api(tenant, "mcp", "finish", name): {"url": "no address of a-secret-value"},
    }
    for subject, body in bodies.items():
        await bus.publish(subject, json.dumps(body).encode())

    async def dead_lettered() -> list[DeadLetter] | None:
        letters = [one.letter async for one in dead_letters(bus) if one.letter.subject in bodies]
        return letters if len(letters) == len(bodies) else None

    letters = await eventually(dead_lettered, WAIT_TIMEOUT_S)
    assert {letter.payload_base64 for letter in letters} == {""}
    assert any("url must" in letter.reason for letter in letters)
    assert "a-secret-value" not in "".join(letter.model_dump_json() for letter in letters)


async def test_a_failed_publish_is_reported_and_dead_lettered(gateway: Served, bus: Bus, tenant: str) -> None:
    errors: asyncio.Queue[Message] = asyncio.Queue()

    async def received(message: Message) -> None:
        errors.put_nowait(message)

    await bus.subscribe(subjects.api(tenant, "error"), received)
    marker = new_id("x")
    subject = subjects.api(tenant, "chat", "send", marker)
    await bus.publish(subject, b'{"content": "hi"}', {REQUEST_ID: "q1"})
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        error = json.loads((await errors.get()).data)

    async def dead_lettered() -> bool:
        return any([letter.letter.subject == subject async for letter in dead_letters(bus)])

    await eventually(dead_lettered, WAIT_TIMEOUT_S)
    assert (error["code"], error["reply_to"], error["details"]["subject"]) == ("not_found", "q1", subject)
