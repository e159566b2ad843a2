"""Write-once slots: one writer wins, and every writer receives the stored message."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus import jetstream
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.dead import dead_letters
from banksman.bus.messages import Message
from banksman.bus.names import RESULTS, api
from banksman.bus.publish import durable
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.slots import MAX_REMOVALS, AttemptSlots, CallSlots, StoredSlot, watch_slots
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.subjects import ANY
from tests.bus.builders import finished, make_approval_reply, make_approval_request, started
from tests.support.fixtures import connect
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

RACERS = 8


@pytest.fixture
def slots(bus: Bus) -> CallSlots:
    return CallSlots(bus)


@pytest.fixture
def approvals(bus: Bus) -> ApprovalSlots:
    return ApprovalSlots(bus)


async def test_one_of_eight_concurrent_starts_of_a_call_wins(slots: CallSlots, tenant: str) -> None:
    for attempt in (f"k-{number}" for number in range(20)):
        async with asyncio.TaskGroup() as tasks:
            racers = [
                tasks.create_task(slots.store_started(tenant, started(attempt, runner=f"r{n}")))
                for n in range(RACERS)
            ]
        placed = [racer.result() for racer in racers]
        (winner,) = [it.stored for it in placed if it.fresh]
        assert [it.stored for it in placed] == [winner] * RACERS


async def test_the_same_process_does_not_start_a_call_twice(slots: CallSlots, tenant: str) -> None:
    """A duplicate is acknowledged like a stored message; only the first write is `fresh`."""
    first = await slots.store_started(tenant, started("k-1"))
    again = await slots.store_started(tenant, started("k-1"))
    assert (first.fresh, again.fresh) == (True, False)
    assert again.stored == first.stored


async def test_a_start_with_a_lost_acknowledgement_is_still_new(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as lossy:
            wire.lose_next("_INBOX")
            starting = asyncio.create_task(CallSlots(lossy).store_started(tenant, started("k-1")))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await wire.until_lost()
                await wire.cut()
                assert (await starting).fresh


async def test_a_restarted_runner_does_not_execute_calls_that_it_had_started(
    slots: CallSlots, tenant: str
) -> None:
    assert (await slots.store_started(tenant, started("k-1", epoch=1))).fresh
    restarted = await slots.store_started(tenant, started("k-1", epoch=2))
    assert not restarted.fresh
    assert restarted.stored is not None and restarted.stored.runner_epoch == 1


async def test_an_attempt_whose_result_was_removed_cannot_start_again(slots: CallSlots, tenant: str) -> None:
    await slots.store_started(tenant, started("k-1"))
    await slots.store_result(tenant, finished("k-1"))
    await slots.forget_results(tenant, ("k-1",))

    async def removed() -> bool:
        return (await slots.read(tenant, "k-1")).finished is None

    await eventually(removed)
    assert (await slots.read(tenant, "k-1")).started is not None
    assert not (await slots.store_started(tenant, started("k-1", runner="other"))).fresh


async def test_a_voided_attempt_can_never_start_and_a_started_one_cannot_be_voided(
    slots: CallSlots, tenant: str
) -> None:
    assert (await slots.store_started(tenant, started("k-1", runner=None))).fresh
    late = await slots.store_started(tenant, started("k-1"))
    assert not late.fresh and late.stored is not None and late.stored.void
    assert (await slots.store_started(tenant, started("k-2"))).fresh
    void = await slots.store_started(tenant, started("k-2", runner=None))
    assert not void.fresh and void.stored is not None and not void.stored.void


async def test_a_result_or_another_tenants_start_is_no_duplicate(slots: CallSlots, tenant: str) -> None:
    """All slots are in one stream, which recognises repeats by message id across all of its subjects."""
    start = started("k-1")
    for who in (tenant, f"{tenant}x"):
        assert (await slots.store_started(who, start)).fresh
        assert (await slots.store_result(who, finished("k-1"), runner_epoch=1)).fresh
        assert await slots.read(who, "k-1") == AttemptSlots(start, finished("k-1"))


async def test_every_writer_receives_the_stored_result(slots: CallSlots, tenant: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        racers = [
            tasks.create_task(slots.store_result(tenant, finished("k-1", runner=None, output=f"{n}")))
            for n in range(RACERS)
        ]
    stored = (await slots.read(tenant, "k-1")).finished
    assert stored is not None
    assert all(racer.result().stored == stored for racer in racers)
    assert sum(racer.result().fresh for racer in racers) == 1


async def test_reading_a_call_without_slots_returns_no_start_and_no_result(
    slots: CallSlots, tenant: str
) -> None:
    assert await slots.read(tenant, "k-1") == AttemptSlots(None, None)


async def test_deleted_slots_are_free(slots: CallSlots, tenant: str) -> None:
    for attempt in ("k-1", "k-2"):
        await slots.store_started(tenant, started(attempt))
        await slots.store_result(tenant, finished(attempt))
    await slots.forget(tenant, ["k-1"])

    async def removed() -> bool:
        return await slots.read(tenant, "k-1") == AttemptSlots(None, None)

    await eventually(removed)
    assert (await slots.read(tenant, "k-2")).finished == finished("k-2")


async def test_subscriptions_to_one_attempt_have_no_wildcard(bus: Bus, tenant: str) -> None:
    """When a subscription with a wildcard ends, the server compares it with each unanswered request."""
    subscriptions = await watch_slots(bus, lambda _: None, tenant=tenant, attempt="k-1")
    for subscription in subscriptions.inner:
        assert ANY not in subscription.subject
    await subscriptions.unsubscribe()


async def test_slots_are_removed_several_at_a_time(nats_server: NatsServer, bus: Bus, tenant: str) -> None:
    """A busy process ends calls faster than the broker replies to one removal after another."""
    attempts = [f"k-{number}" for number in range(2 * MAX_REMOVALS)]
    requested: set[bytes] = set()
    all_at_once = asyncio.Event()

    def count(message: Message) -> None:
        requested.add(message.data)
        if len(requested) == MAX_REMOVALS:
            all_at_once.set()

    async with lossy_wire(nats_server.port) as wire, asyncio.timeout(WAIT_TIMEOUT_S):
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as lossy:
            slots = CallSlots(lossy)
            for attempt in attempts:
                await slots.store_started(tenant, started(attempt))
            await bus.listen(api("STREAM.PURGE", RESULTS), count)
            await bus.ready()
            wire.lose_next("_INBOX", times=10_000)
            await slots.forget(tenant, attempts)
            await all_at_once.wait()
            assert len(requested) == MAX_REMOVALS
            wire.lose_next("_INBOX", times=0)

            async def removed() -> bool:
                return not await jetstream.count_on_replica(bus, RESULTS, subjects.tool_started(tenant, ANY))

            await eventually(removed)


async def test_an_undecodable_slot_is_poison(slots: CallSlots, bus: Bus, tenant: str) -> None:
    await durable(bus, subjects.tool_started(tenant, "k-1"), b"{}", msg_id=f"{tenant}:x")
    with pytest.raises(Poison):
        await slots.read(tenant, "k-1")
    with pytest.raises(Poison):
        await slots.store_started(tenant, started("k-1"))


async def test_owners_are_notified_of_stored_messages_and_not_of_refused_ones(
    nats_server: NatsServer, slots: CallSlots, bus: Bus, tenant: str
) -> None:
    received: asyncio.Queue[StoredSlot] = asyncio.Queue()

    async with await connect(nats_server) as owner, asyncio.timeout(WAIT_TIMEOUT_S):
        await watch_slots(owner, received.put_nowait, tenant=tenant)
        await owner.ready()
        await slots.store_started(tenant, mine := started("k-1"))
        await slots.store_started(tenant, started("k-1", runner="r2"))
        await bus.publish(subjects.tool_result(tenant, "k-2"), b"")
        await slots.store_result(tenant, finished("k-1"))
        facts = [await received.get(), await received.get(), await received.get()]
        await owner.ready()
    assert received.empty()
    by_attempt = {(fact.attempt, fact.kind): fact for fact in facts}
    assert by_attempt["k-1", "started"].decode() == mine
    assert by_attempt["k-1", "result"].decode() == finished("k-1")
    with pytest.raises(Poison):
        by_attempt["k-2", "result"].decode()


async def test_the_first_of_eight_decisions_of_an_approval_wins(
    approvals: ApprovalSlots, tenant: str
) -> None:
    await approvals.store_request(make_approval_request(tenant, "a1"))
    async with asyncio.TaskGroup() as tasks:
        racers = [
            tasks.create_task(approvals.store_reply(make_approval_reply(tenant, "a1", by=f"user{n}")))
            for n in range(RACERS)
        ]
    _, stored = await approvals.read(tenant, "a1")
    assert stored is not None
    assert [racer.result() for racer in racers] == [stored] * RACERS


async def test_storing_an_approval_request_again_changes_nothing(
    approvals: ApprovalSlots, tenant: str
) -> None:
    first = await approvals.store_request(make_approval_request(tenant, "a1"))
    assert await approvals.store_request(make_approval_request(tenant, "a1")) == first
    assert [one.request for one in await approvals.pending(tenant)] == [first]


async def test_pending_approval_requests_are_those_without_a_decision(
    approvals: ApprovalSlots, tenant: str
) -> None:
    requests = [
        await approvals.store_request(make_approval_request(tenant, f"a{number}")) for number in range(4)
    ]
    await approvals.store_request(make_approval_request(f"{tenant}x", "a9"))
    await approvals.store_reply(make_approval_reply(tenant, "a1", by="bob"))
    await approvals.forget(tenant, "a2")
    assert [one.request for one in await approvals.pending(tenant)] == [requests[0], requests[3]]


async def test_an_invalid_decision_is_dead_lettered_and_reopens_the_approval_request(
    approvals: ApprovalSlots, bus: Bus, tenant: str
) -> None:
    await approvals.store_request(request := make_approval_request(tenant, "a1"))
    forged = await approvals.store_reply(make_approval_reply(tenant, "a1", by="mallory"))
    await approvals.discard_reply(forged, "its signature is wrong")
    assert [one.request for one in await approvals.pending(tenant)] == [request]
    mine = make_approval_reply(tenant, "a1", by="alice")
    assert await approvals.store_reply(mine) == mine
    await approvals.discard_reply(forged, "its signature is wrong")
    assert await approvals.read(tenant, "a1") == (request, mine)
    dead = [it.letter async for it in dead_letters(bus, stream="APPROVALS") if tenant in it.letter.subject]
    assert [letter.reason for letter in dead] == ["its signature is wrong"]


async def test_a_decision_survives_a_restart_of_the_server(own_nats: NatsServer, own_bus: Bus) -> None:
    approvals = ApprovalSlots(own_bus)
    await approvals.store_request(make_approval_request("t1", "a1"))
    first = await approvals.store_reply(make_approval_reply("t1", "a1", by="alice"))
    own_nats.restart()
    assert await approvals.store_reply(make_approval_reply("t1", "a1", by="bob")) == first
