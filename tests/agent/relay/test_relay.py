"""Runners and tool servers store messages through an agent, which checks them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest
from tests.support.fixtures import ACME, SecuredNats

from banksman.agent.relay import Relay, RoomLimits
from banksman.agent.relayed_messages import TenantRedaction
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters, store_late_result
from banksman.bus.errors import PublishRefused, WrongLastSequence
from banksman.bus.jetstream import last_message
from banksman.bus.messages import Message
from banksman.bus.names import AGENTS, EXPECTED_LAST_SUBJECT_SEQ, MSG_ID, RUNNERS, kv_stream, kv_subject
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import (
    RENEW_EVERY_S,
    end_lease,
    instance_key,
    renew_lease,
    stop_after_s,
    take_lease,
)
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, CallStarted, LateResult, RunnerLease
from banksman.contracts.errors import Overloaded
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import TENANT_ACCOUNT
from banksman.contracts.tools import ToolResult
from banksman.deployment.users import AGENT

HOLDER, OTHER = "tool-runner-r1", "tool-runner-r2"


@pytest.fixture
async def agent(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    """The connection of an agent that serves the relay."""
    async with (
        await secured_nats.connect(AGENT) as bus,
        Relay(bus, await CallTickets.load(bus), TenantRedaction(bus, b"")),
    ):
        yield bus


async def ticket(agent: Bus, tenant: str, attempt: str, holder: str = "r1") -> str:
    return (await CallTickets.load(agent)).issue(tenant, attempt, holder)


def started(attempt: str, runner: str, of_call: str | None) -> CallStarted:
    return CallStarted(
        conversation_id="c1",
        attempt=attempt,
        runner=runner,
        runner_epoch=1,
        ts=datetime.now(UTC),
        ticket=of_call,
    )


def finished(attempt: str, runner: str, of_call: str | None, *, chars: int = 0) -> CallFinished:
    content = {"success": True, "by": runner, "text": "x" * chars}
    result = ToolResult(tool_call_id="k", content=content, runner=runner)
    return CallFinished(conversation_id="c1", attempt=attempt, result=result, ticket=of_call)


async def test_runner_stores_start_and_result_of_the_call_that_it_holds(
    secured_nats: SecuredNats, agent: Bus, tenant: str
) -> None:
    held = await ticket(agent, tenant, "k-1")
    async with await secured_nats.connect(HOLDER) as runner:
        slots = CallSlots(runner, may_read=False)
        assert (await slots.store_started(tenant, started("k-1", "r1", held))).fresh
        assert not (await slots.store_started(tenant, started("k-1", "r1", held))).fresh
        assert (await slots.store_result(tenant, finished("k-1", "r1", held), runner_epoch=1)).fresh
        repeated = await slots.store_result(tenant, finished("k-1", "r1", held), runner_epoch=2)
        assert not repeated.fresh and repeated.taken
    stored = await CallSlots(agent).read(tenant, "k-1")
    assert stored.started == started("k-1", "r1", held).model_copy(
        update={"ts": stored.started and stored.started.ts}
    )
    assert stored.finished == finished("k-1", "r1", held)


@pytest.mark.parametrize(
    ("named", "stolen"), [("r1", "none"), ("r2", "none"), ("r1", "own"), ("r2", "own"), ("r2", "holder")]
)
async def test_runner_cannot_store_start_or_result_of_a_call_of_another_runner(
    secured_nats: SecuredNats, agent: Bus, tenant: str, named: str, stolen: str
) -> None:
    """A runner without the ticket of a call is refused; so is one that uses it under its own name."""
    tickets = {
        "none": None,
        "own": await ticket(agent, tenant, "k-2", "r2"),
        "holder": await ticket(agent, tenant, "k-1", "r1"),
    }
    async with await secured_nats.connect(OTHER) as thief:
        slots = CallSlots(thief, may_read=False)
        with pytest.raises(PublishRefused, match="ticket"):
            await slots.store_started(tenant, started("k-1", named, tickets[stolen]))
        with pytest.raises(PublishRefused, match="ticket"):
            await slots.store_result(tenant, finished("k-1", named, tickets[stolen]))
    stored = await CallSlots(agent).read(tenant, "k-1")
    assert (stored.started, stored.finished) == (None, None)


async def test_runner_cannot_void_a_call(secured_nats: SecuredNats, agent: Bus, tenant: str) -> None:
    void = started("k-1", "r1", await ticket(agent, tenant, "k-1")).model_copy(update={"void": True})
    async with await secured_nats.connect(HOLDER) as runner:
        with pytest.raises(PublishRefused):
            await CallSlots(runner, may_read=False).store_started(tenant, void)


async def test_renewal_reaches_another_agent_while_one_does_not_reply(secured_nats: SecuredNats) -> None:
    """Seven of its attempts go to an agent that is partitioned; the lease must outlive them."""
    received: list[str] = []
    async with await secured_nats.connect(AGENT) as agent, await secured_nats.connect(ACME.user) as server:

        async def eighth(message: Message) -> None:
            received.append(message.headers[MSG_ID])
            if len(received) == 8:
                await agent.publish(message.reply, b'{"stream": "KV_runners", "seq": 7}')

        await agent.subscribe(subjects.all_of("relay", TENANT_ACCOUNT), eighth, AGENTS)
        await agent.ready()
        lease = RunnerLease(runner="weather", runner_epoch=5)
        key = instance_key("weather", 5, "acme")
        assert await renew_lease(server, lease, 6, budget_s=stop_after_s(1), key=key) == 7
    assert len(set(received)) == 1


async def test_note_of_a_late_result_needs_the_ticket(
    secured_nats: SecuredNats, agent: Bus, tenant: str
) -> None:
    result = finished("k-1", "r1", None).result
    late = LateResult(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r",
        attempt="k-1",
        tool="bash",
        digest="d",
        runner="r1",
        runner_epoch=1,
        ended_at=datetime.now(UTC),
        result=result,
    )
    async with await secured_nats.connect(HOLDER) as runner:
        with pytest.raises(PublishRefused, match="ticket"):
            await store_late_result(runner, late)
        held = await ticket(agent, tenant, "k-1")
        sequence = await store_late_result(runner, late.model_copy(update={"ticket": held}))
    assert sequence in [letter.stream_seq async for letter in dead_letters(agent)]


async def test_lease_of_a_tenants_tool_server_is_taken_renewed_and_released(
    secured_nats: SecuredNats, agent: Bus
) -> None:
    key = instance_key("weather", 7, "acme")
    lease = RunnerLease(runner="weather", runner_epoch=7, workspaces=False)
    async with await secured_nats.connect(ACME.user) as server:
        revision = await take_lease(server, lease, key=key)
        later = await renew_lease(server, lease, revision, budget_s=RENEW_EVERY_S, key=key)
        with pytest.raises(WrongLastSequence):
            await renew_lease(server, lease, revision, budget_s=RENEW_EVERY_S, key=key)
        entry = await Bucket(agent, RUNNERS, RunnerLease).get(key)
        assert entry is not None and entry.revision == later
        await end_lease(server, key, later, budget_s=RENEW_EVERY_S)
    assert await Bucket(agent, RUNNERS, RunnerLease).get(key) is None


HOSTILE = {
    "Status": "500",
    "Nats-TTL": "never",
    "Nats-Rollup": "all",
    "Nats-Expected-Stream": "KV_runners",
    "Nats-Expected-Last-Sequence": "0",
    "Nats-Schedule": "@every 1s",
    "Nats-Schedule-Target": "run.work.other.c1",
    "Nats-Batch-Id": "b",
    "Nats-Batch-Sequence": "1",
}


async def test_headers_of_a_tenant_have_no_effect(secured_nats: SecuredNats, agent: Bus, tenant: str) -> None:
    """Only the id of the message, and the expected revision of a lease, are passed on."""
    key = instance_key("weather", 8, "acme")
    lease = RunnerLease(runner="weather", runner_epoch=8, workspaces=False).model_dump_json()
    body = {
        kv_subject(RUNNERS, key): lease,
        subjects.tool_started("acme", f"{tenant}-1"): started(
            f"{tenant}-1", "weather", None
        ).model_dump_json(),
        subjects.tool_result("acme", f"{tenant}-1"): finished(
            f"{tenant}-1", "weather", None
        ).model_dump_json(),
    }
    async with await secured_nats.connect(ACME.user) as server:
        for subject, data in body.items():
            headers = {**HOSTILE, MSG_ID: f"{subject}:{tenant}"}
            reply = await server.replies.request(subject, data.encode(), headers=headers, timeout_s=5)
            assert "seq" in json.loads(reply.data), reply.data
    for stream, subject in zip((kv_stream(RUNNERS), "RESULTS", "RESULTS"), body, strict=True):
        stored = await last_message(agent, stream, subject)
        assert stored is not None
        assert not HOSTILE.keys() & stored.headers.keys()


@pytest.mark.parametrize(
    "headers",
    [{}, {MSG_ID: "tool.result.acme.other-1:x"}, {MSG_ID: "tool.result.other.k-1:r1:1"}],
)
async def test_message_without_a_matching_id_is_refused(
    secured_nats: SecuredNats, agent: Bus, headers: dict[str, str]
) -> None:
    """Otherwise the id of one message could make another message a duplicate."""
    subject = subjects.tool_result("acme", "k-1")
    async with await secured_nats.connect(ACME.user) as server:
        data = finished("k-1", "weather", None).model_dump_json().encode()
        reply = await server.replies.request(subject, data, headers=headers, timeout_s=5)
    assert MSG_ID in json.loads(reply.data)["error"]["description"]


async def test_a_result_with_a_number_above_a_double_fails_its_call_with_the_reason(
    secured_nats: SecuredNats, agent: Bus, tenant: str
) -> None:
    """Otherwise the model would receive null; a refused result would leave the outcome unknown."""
    attempt = f"{tenant}-2"
    subject = subjects.tool_result("acme", attempt)
    data = finished(attempt, "weather", None).model_dump_json().replace('"success":true', '"success":1e400')
    async with await secured_nats.connect(ACME.user) as server:
        headers = {MSG_ID: f"{subject}:{tenant}"}
        await server.replies.request(subject, data.encode(), headers=headers, timeout_s=5)
    stored = (await CallSlots(agent).read("acme", attempt)).finished
    assert stored is not None
    assert (stored.result.is_error, stored.result.error_kind) == (True, "tool_error")
    assert "larger than a double" in str(stored.result.content["error"])


async def test_invalid_expected_revision_is_refused(secured_nats: SecuredNats, agent: Bus) -> None:
    subject = kv_subject(RUNNERS, instance_key("weather", 9, "acme"))
    headers = {MSG_ID: f"{subject}:1", EXPECTED_LAST_SUBJECT_SEQ: "x"}
    async with await secured_nats.connect(ACME.user) as server:
        reply = await server.replies.request(subject, b"{}", headers=headers, timeout_s=5)
    assert json.loads(reply.data)["error"]["code"] == 400


@pytest.mark.parametrize("kind", ["leases", "starts", "results"])
async def test_tenant_that_floods_leaves_room_for_others(
    secured_nats: SecuredNats, tenant: str, kind: str
) -> None:
    """The flooding tenant gets a clear error before a stream is full, and others are served."""
    async with (
        await secured_nats.connect(AGENT) as agent,
        Relay(
            agent,
            await CallTickets.load(agent),
            TenantRedaction(agent, b""),
            limits=RoomLimits(leases=12, slots=12),
        ),
    ):
        async with await secured_nats.connect(ACME.user) as flooding:
            with pytest.raises(Overloaded, match="storage_full"):
                for number in range(20):
                    await flood(flooding, kind, number)
        async with await secured_nats.connect(HOLDER) as runner:
            held = await ticket(agent, tenant, "k-1")
            slots = CallSlots(runner, may_read=False)
            assert (await slots.store_result(tenant, finished("k-1", "r1", held))).fresh
            assert await take_lease(runner, RunnerLease(runner="r1", runner_epoch=1)) > 0


async def flood(tenants: Bus, kind: str, number: int) -> None:
    """Store one more message without a ticket."""
    attempt, slots = f"{new_id('k')}-1", CallSlots(tenants, may_read=False)
    match kind:
        case "leases":
            lease = RunnerLease(runner="weather", runner_epoch=number, workspaces=False)
            await take_lease(tenants, lease, key=instance_key("weather", 100 + number, "acme"))
        case "starts":
            await slots.store_started("acme", started(attempt, "weather", None))
        case _:
            await slots.store_result("acme", finished(attempt, "weather", None, chars=50_000))
