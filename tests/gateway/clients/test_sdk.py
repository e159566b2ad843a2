"""The client of `banksman.sdk`: the same calls over the websocket and HTTP as over NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.contracts.messages.samples import BODIES, TS
from tests.gateway.conftest import TOKENS, Agent, Served
from tests.support.nats import Broker
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.approvals import ApprovalRequested
from banksman.contracts.assistants import AssistantBody, NewAssistant
from banksman.contracts.errors import ErrorCode, Unavailable
from banksman.contracts.event_frames import LEVELS, RunStartedData, TextDelta, event_frame
from banksman.contracts.events import Event, MessageCompleted, RunFinished
from banksman.contracts.live_output import Delta
from banksman.sdk import Client, EventFrame, RemoteError, connect
from banksman.sdk.transports.websocket import ConnectionEnded

EVENTS = [Event(seq=1, ts=TS, data=body) for body in BODIES]


@pytest.fixture(params=["websocket", "nats"])
async def client(
    request: pytest.FixtureRequest, guarded: Served, nats_server: Broker, tenant: str
) -> AsyncGenerator[Client]:
    """A client of one tenant over each interface."""
    if request.param == "nats":
        async with connect(nats_server.url, tenant) as client:
            yield client
    else:
        async with connect(guarded.url, token=TOKENS["alice"]) as client:
            yield client


async def first(client: Client, conversation_id: str, kind: str) -> EventFrame:
    """Return the first event of a type."""
    async with asyncio.timeout(WAIT_TIMEOUT_S), aclosing(client.follow(conversation_id)) as events:
        async for event in events:
            if event.type == kind:
                return event
    raise AssertionError("a log never ends")


async def test_a_run_with_an_approval_request(client: Client, agent: Agent, tenant: str) -> None:
    conversation_id = await client.create_conversation(title="Builds")
    run = await client.send(conversation_id, "hello", request_id="once-" + conversation_id)
    again = await client.send(conversation_id, "hello", request_id="once-" + conversation_id)
    start = await agent.started(conversation_id)
    await agent.begin(start)
    asked = (await agent.request_approval(start)).approval_id
    requested = (await first(client, conversation_id, "approval.requested")).body
    (pending,) = await client.open_approvals()
    decided = await client.reply(asked, all="approve", digests=[item.digest for item in pending.items])
    late = await client.reply(asked, all="reject")
    await agent.finish(start)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        outcome = await client.outcome(run)

    assert (client.tenant, again) == (tenant, run)
    assert isinstance(requested, ApprovalRequested) and requested.approval_id == pending.approval_id == asked
    assert (decided.outcome, decided.already_resolved, late.already_resolved) == ("approved", False, True)
    assert isinstance(outcome, RunFinished) and outcome.content == "Hello."
    assert (await client.conversations(query="Builds")).items[0].conversation_id == conversation_id


async def test_a_level_of_detail_selects_events_and_watch_adds_live_text(
    client: Client, agent: Agent, bus: Bus, tenant: str
) -> None:
    conversation_id = await client.create_conversation()
    await client.send(conversation_id, "hello")
    start = await agent.started(conversation_id)
    await agent.begin(start)
    async with (
        asyncio.timeout(WAIT_TIMEOUT_S),
        aclosing(client.follow(conversation_id, detail="final")) as final,
        aclosing(client.watch(conversation_id, 1)) as watched,
    ):
        opening = await anext(final)
        assert (await anext(watched)).type == "iteration.started"
        piece = Delta(
            conversation_id=conversation_id, run_id=start.run_id, message_id="m1", offset=0, text="Hel"
        )
        # The subscription to live output begins while the stored events are sent.
        live = asyncio.create_task(anext(watched))
        while not live.done():
            await bus.publish(subjects.delta(tenant, conversation_id), piece.model_dump_json().encode())
            await asyncio.wait([live], timeout=0.05)
        await agent.finish(start)
        reply = await anext(final)

    assert isinstance(opening.body, RunStartedData) and opening.body.message == "hello"
    assert live.result().body == TextDelta(message_id="m1", offset=0, text="Hel")
    assert isinstance(reply.body, MessageCompleted) and (reply.seq, reply.body.content) == (3, "Hello.")


async def test_new_approval_requests_of_all_conversations_are_received(client: Client, agent: Agent) -> None:
    async def requested() -> str:
        conversation_id = await client.create_conversation()
        await client.send(conversation_id, "hello")
        start = await agent.started(conversation_id)
        await agent.begin(start)
        return (await agent.request_approval(start)).approval_id

    await requested()
    async with asyncio.timeout(WAIT_TIMEOUT_S), client.approvals() as approvals:
        await client.ready()
        for _ in range(2):
            made = await requested()
            assert (await anext(approvals)).approval_id == made


async def test_conversations_and_assistants_are_managed(client: Client) -> None:
    conversation_id = await client.create_conversation(title="Old")
    renamed = await client.rename_conversation(conversation_id, "New")
    labelled = await client.label_conversation(conversation_id, "crane")
    by_label = [(await client.conversations(label=name)).items for name in ("crane", "load")]
    made = await client.create_assistant(NewAssistant(id="cranes", name="Cranes"))
    changed = await client.update_assistant(made.id, AssistantBody(name="Lifts"), revision=made.revision)
    listed = [assistant.id for assistant in await client.assistants()]
    await client.delete_assistant(made.id)
    await client.delete_conversation(conversation_id)

    assert (renamed.title, changed.name, listed) == ("New", "Lifts", ["cranes", "default"])
    assert (labelled.labels, [len(items) for items in by_label]) == (("crane",), [1, 0])
    assert (await client.conversations()).items == ()
    assert await client.tool("bash") in await client.tools()
    assert (await client.usage()).windows
    with pytest.raises(RemoteError) as missing:
        await client.send("c-unknown", "hello")
    assert missing.value.code is ErrorCode.NOT_FOUND


async def test_a_wrong_key_ends_the_client(guarded: Served) -> None:
    with pytest.raises(ConnectionEnded) as refused:
        async with connect(guarded.url, token="wrong"):
            raise AssertionError("it was accepted")
    assert refused.value.code is ErrorCode.UNAUTHORIZED


async def test_a_missing_gateway_is_reported_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match=r"no gateway within 0.2 s: .*refused|no gateway within 0.2 s"):
        async with connect("http://127.0.0.1:1", connect_timeout_s=0.2):
            raise AssertionError("there is none")


def test_every_event_has_a_level_and_a_typed_body() -> None:
    live = {"message.delta", "reasoning.delta", "model.waiting", "tool_call.started", "tool_call.output"}
    assert LEVELS.keys() == live | {event.data.type for event in EVENTS}
    for event in EVENTS:
        assert EventFrame.model_validate(event_frame(event, "c1", "e1", 0)).body is not None, event.data.type
