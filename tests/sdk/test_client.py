"""A client of the NATS API with a tenant's own account (R114)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from banksman.bus.connection import Bus
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.approvals import ItemDecision
from banksman.contracts.errors import BadInput, ErrorCode, NotFound, Unavailable
from banksman.contracts.event_frames import TextDelta
from banksman.contracts.events import MessageCompleted
from banksman.contracts.frames import Ack, ApprovalDecision, ChatSend, ClientFrame
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.live_output import Delta
from banksman.contracts.work import ApprovalRequest
from banksman.sdk import Client, LiveFrame, LogRestored, RemoteError, StartedRun, connect
from banksman.sdk.events import EventFrame
from tests.sdk.fake_gateway import FakeGateway, Writer, ended, first, message, started
from tests.support.fixtures import SecuredNats
from tests.support.fixtures import connect as connect_plain
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S

TENANT = "acme"


def acknowledge(frame: ClientFrame) -> Ack:
    return Ack(
        reply_to=str(frame.id),
        conversation_id="c1",
        run_id="c1-0123456789ab",
        message_id="m1",
        outcome="approved",
        resolved_by="ada",
        already_resolved=True,
    )


@pytest.fixture
async def gateway(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    async with await secured_nats.connect("gateway") as bus:
        yield bus


@pytest.fixture
async def agent(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    async with await secured_nats.connect("agent") as bus:
        yield bus


@pytest.fixture
async def client(secured_nats: SecuredNats) -> AsyncGenerator[Client]:
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    async with connect(secured_nats.server.url, TENANT, nkey_seed_file=seed) as client:
        yield client


@pytest.fixture
async def fake(gateway: Bus) -> AsyncGenerator[FakeGateway]:
    async with FakeGateway(gateway, TENANT, acknowledge).open() as fake:
        yield fake


@pytest.fixture
def log(agent: Bus, conversation: str) -> Writer:
    return Writer(agent, TENANT, conversation)


async def texts(count: int, events: AsyncGenerator[EventFrame]) -> list[tuple[int, Any]]:
    found = await first(count, events)
    return [(event.seq, event.data["content"]) for event in found if isinstance(event, EventFrame)]


async def test_each_request_is_a_websocket_frame_on_its_subject(client: Client, fake: FakeGateway) -> None:
    decision = ItemDecision(tool_call_id="k1", decision="approve")
    assert await client.create_conversation(title="Report", request_id="q1") == "c1"
    assert await client.send("c1", "hello", request_id="q2") == StartedRun("c1-0123456789ab", "m1")
    await client.cancel("c1-0123456789ab", reason="enough", request_id="q3")
    reply = await client.reply("a1", decisions=[decision], digests=["d1"], request_id="q4")
    assert reply.resolved_by == "ada"
    await client.start_workflow("create_project", {"name": "demo"}, conversation_id="c1", request_id="q5")

    assert [(subject, request_id) for subject, request_id, _ in fake.requests] == [
        ("api.acme.conversation.create", "q1"),
        ("api.acme.chat.send.c1", "q2"),
        ("api.acme.run.cancel.c1", "q3"),
        ("api.acme.approval.reply.a1", "q4"),
        ("api.acme.workflow.start.create_project", "q5"),
    ]
    assert [frame.id for _, _, frame in fake.requests] == ["q1", "q2", "q3", "q4", "q5"]
    _, sent, _, decided, _ = (frame for _, _, frame in fake.requests)
    assert isinstance(sent, ChatSend) and sent.content == "hello"
    assert isinstance(decided, ApprovalDecision) and decided.decisions == (decision,)
    assert decided.digests == ("d1",)


async def test_refused_request_raises_the_gateways_code_and_message(
    client: Client, fake: FakeGateway
) -> None:
    def refuse(_frame: ClientFrame) -> Ack:
        raise NotFound("conversation", "c9")

    fake.reply = refuse
    with pytest.raises(RemoteError, match="no conversation with id 'c9'") as refused:
        await client.send("c9", "hello")

    assert refused.value.code == ErrorCode.NOT_FOUND
    assert not refused.value.retryable


async def test_a_text_with_half_of_a_character_is_refused_before_it_is_sent(
    client: Client, fake: FakeGateway
) -> None:
    with pytest.raises(BadInput, match="content"):
        await client.send("c1", "a\udcff")
    with pytest.raises(BadInput):
        await client.start_workflow("create_project", {"name": "\ud800"})
    assert fake.requests == []


async def test_request_waits_for_a_gateway_and_keeps_its_id(client: Client, gateway: Bus) -> None:
    sending = asyncio.create_task(client.send("c1", "hello"))
    await client.ready()
    async with FakeGateway(gateway, TENANT, acknowledge).open() as fake, asyncio.timeout(WAIT_TIMEOUT_S):
        assert (await sending).run_id == "c1-0123456789ab"

    assert len({request_id for _, request_id, _ in fake.requests}) == 1


async def test_follow_yields_stored_events_then_live_events_without_a_gap(
    client: Client, fake: FakeGateway, log: Writer
) -> None:
    await log.write(message("one"), message("two"))
    await log.write(message("three"))

    async with aclosing(client.follow(log.conversation_id)) as events:
        before = await texts(3, events)
        await log.write(message("four"), message("five"))
        after = await texts(2, events)

    assert before == [(1, "one"), (2, "two"), (3, "three")]
    assert after == [(4, "four"), (5, "five")]
    assert fake.replays == 1


async def test_follow_continues_after_the_given_seq(client: Client, fake: FakeGateway, log: Writer) -> None:
    await log.write(*(message(str(number)) for number in range(1, 6)))

    async with aclosing(client.follow(log.conversation_id, after_seq=3)) as events:
        assert await texts(2, events) == [(4, "4"), (5, "5")]


async def test_gap_before_a_live_event_is_read_from_the_log(
    client: Client, fake: FakeGateway, log: Writer
) -> None:
    """The replay came from a replica that lagged, which the next live commit shows."""
    await log.write(message("one"), message("two"))
    fake.lags = True
    async with aclosing(client.follow(log.conversation_id)) as events:
        reading = asyncio.create_task(texts(3, events))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await fake.replayed.wait()
        fake.lags = False
        await log.write(message("three"))

        assert await reading == [(1, "one"), (2, "two"), (3, "three")]
    assert fake.replays == 2


async def test_follow_raises_log_restored_instead_of_mixing_logs(
    client: Client, fake: FakeGateway, log: Writer
) -> None:
    await log.write(message("one"))
    async with aclosing(client.follow(log.conversation_id)) as events:
        await texts(1, events)
        log.log_epoch = "e2"
        await log.write(message("two"))

        with pytest.raises(LogRestored):
            await texts(1, events)


async def test_outcome_is_the_end_of_the_given_run_only(
    client: Client, fake: FakeGateway, log: Writer
) -> None:
    other, mine = (StartedRun(run_id_for(log.conversation_id)) for _ in range(2))
    waiting = asyncio.create_task(client.outcome(mine))
    await log.write(started("first"), ended("not mine"), run_id=other.run_id)
    await log.write(started("second"), ended("mine"), run_id=mine.run_id)

    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert (await waiting).content == "mine"


async def test_client_receives_approval_requests_of_its_tenant_only(client: Client, agent: Bus) -> None:
    def approval_request(tenant: str) -> ApprovalRequest:
        return ApprovalRequest(
            tenant=tenant,
            conversation_id="c1",
            run_id="c1-0123456789ab",
            approval_id=new_id("a"),
            expires_at=datetime.now(UTC),
            items=(),
        )

    theirs, ours = approval_request("globex"), approval_request(TENANT)
    async with client.approvals() as approvals:
        await _flushed(client, agent)
        for request in (theirs, ours):
            subject = subjects.approval_request(request.tenant, request.approval_id)
            await durable(agent, subject, request.model_dump_json().encode(), msg_id=request.approval_id)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert (await anext(aiter(approvals))).approval_id == ours.approval_id


async def test_watch_yields_text_between_events_while_the_model_writes_it(
    client: Client, fake: FakeGateway, agent: Bus, log: Writer
) -> None:
    subject = subjects.delta(TENANT, log.conversation_id)
    thought = Delta(
        conversation_id=log.conversation_id, run_id="r", message_id="m", offset=0, text="Hm", kind="reasoning"
    )
    piece = thought.model_copy(update={"text": "Hel", "kind": "message"})
    await log.write(message("before"))
    async with aclosing(client.watch(log.conversation_id, detail="steps")) as frames:
        stored = await first(1, frames)
        for delta in (thought, piece):
            await agent.publish(subject, delta.model_dump_json().encode())
        await agent.ready()
        await log.write(message("after"))
        live, after = await first(2, frames)

    assert [stored[0].body, after.type] == [
        MessageCompleted.model_validate(stored[0].data),
        "message.completed",
    ]
    assert isinstance(live, LiveFrame)
    assert live.body == TextDelta(message_id="m", offset=0, text="Hel")


async def test_client_receives_nothing_of_another_tenant(
    secured_nats: SecuredNats, agent: Bus, conversation: str
) -> None:
    """R114, P8: the client's account decides, not the tenant that it names."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    async with connect(secured_nats.server.url, "globex", nkey_seed_file=seed) as mallory:
        async with aclosing(mallory.watch(conversation)) as frames:
            piece = Delta(conversation_id=conversation, run_id="r", message_id="m", offset=0, text="x")
            await agent.publish(subjects.delta("globex", conversation), piece.model_dump_json().encode())
            await agent.ready()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await anext(frames)


async def test_follow_continues_after_a_restart_of_the_server(
    own_nats: NatsServer, tenant: str, conversation: str
) -> None:
    async with (
        await connect_plain(own_nats) as bus,
        FakeGateway(bus, tenant, acknowledge).open(),
        connect(own_nats.url, tenant) as client,
        aclosing(client.follow(conversation)) as events,
    ):
        log = Writer(bus, tenant, conversation)
        await log.write(message("before"))
        assert await texts(1, events) == [(1, "before")]
        await asyncio.to_thread(own_nats.restart)
        await log.write(message("after"))

        assert await texts(1, events) == [(2, "after")]


async def test_invalid_tenant_is_refused_before_connecting() -> None:
    with pytest.raises(BadInput, match="tenant"):
        async with connect("nats://127.0.0.1:1", "acme.>"):
            pass


async def test_missing_server_is_reported_in_one_sentence() -> None:
    with pytest.raises(Unavailable, match="no connection"):
        async with connect("nats://127.0.0.1:1", "acme", connect_timeout_s=0.3):
            pass


async def _flushed(client: Client, bus: Bus) -> None:
    """Wait until the server has both connections' subscriptions."""
    await client.ready()
    await bus.ready()
