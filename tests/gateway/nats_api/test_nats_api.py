from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.gateway.conftest import Agent, Served
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.envelope import RemoteError
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.sdk.client import Client, StartedRun
from banksman.sdk.events import EventFrame


@pytest.fixture
async def client(gateway: Served, bus: Bus, tenant: str) -> AsyncGenerator[Client]:
    yield Client(bus, tenant)


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


async def test_a_replay_during_the_first_commit_has_one_log_epoch(
    client: Client, agent: Agent, bus: Bus
) -> None:
    """Events that are stored during a replay have the same epoch in every later read."""

    async def followed(run: StartedRun) -> list[EventFrame]:
        async with aclosing(client.follow(run.conversation_id)) as events:
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


async def test_a_failed_publish_is_reported_and_dead_lettered(gateway: Served, bus: Bus, tenant: str) -> None:
    errors: asyncio.Queue[Message] = asyncio.Queue()

    async def received(message: Message) -> None:
        errors.put_nowait(message)

    await bus.subscribe(subjects.api(tenant, "error"), received)
    marker = new_id("x")
    subject = subjects.api(tenant, "chat", "send", marker)
    await bus.publish(subject, b'{"content": "hi"}')
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        error = json.loads((await errors.get()).data)

    async def dead_lettered() -> bool:
        return any([letter.letter.subject == subject async for letter in dead_letters(bus)])

    await eventually(dead_lettered, WAIT_TIMEOUT_S)
    assert error["code"] == "not_found"
