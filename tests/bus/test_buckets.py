"""Buckets, their views in memory, and the leases of runners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import WrongLastSequence
from banksman.bus.names import kv_subject
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import LEASE_TTL_S, RENEW_EVERY_S, end_lease, renew_lease, take_lease
from banksman.bus.storage.watch import BucketView
from banksman.contracts.assistants import Assistant
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import BadInput, Poison
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import stored
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


def assistant(name: str) -> Assistant:
    return Assistant(id="a1", name=name)


@pytest.fixture
def bucket(bus: Bus) -> Bucket[Assistant]:
    return Bucket(bus, "assistants", Assistant)


@pytest.fixture
async def lossy_bus(nats_server: NatsServer) -> AsyncGenerator[tuple[Bus, object]]:
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as connected:
            yield connected, wire


async def test_a_value_is_returned_with_its_revision(bucket: Bucket[Assistant], tenant: str) -> None:
    key = f"{tenant}.a1"
    first = await bucket.put(key, assistant("one"))
    entry = await bucket.get(key)
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == (key, assistant("one"), first)
    second = await bucket.update(key, assistant("two"), first)
    assert second is not None and second > first
    assert await bucket.update(key, assistant("stale"), first) is None
    entry = await bucket.get(key)
    assert entry is not None and entry.value.name == "two"


async def test_one_of_eight_concurrent_creates_of_a_key_succeeds(
    bucket: Bucket[Assistant], tenant: str
) -> None:
    async with asyncio.TaskGroup() as tasks:
        racers = [tasks.create_task(bucket.create(f"{tenant}.a1", assistant(f"{n}"))) for n in range(8)]
    assert sum(racer.result() is not None for racer in racers) == 1


async def test_a_deleted_key_is_missing_and_can_be_created_again(
    bucket: Bucket[Assistant], tenant: str
) -> None:
    key = f"{tenant}.a1"
    revision = await bucket.create(key, assistant("one"))
    assert revision is not None
    assert not await bucket.delete(key, revision=revision + 1)
    assert await bucket.delete(key, revision=revision)
    assert await bucket.get(key) is None
    assert await bucket.keys(tenant) == []
    assert await bucket.create(key, assistant("two")) is not None


async def test_entries_are_filtered_by_prefix(bucket: Bucket[Assistant], tenant: str) -> None:
    for number in range(3):
        await bucket.put(f"{tenant}.a{number}", assistant(f"{number}"))
    await bucket.put(f"{tenant}x.a9", assistant("other"))
    assert sorted(await bucket.keys(tenant)) == [f"{tenant}.a{number}" for number in range(3)]
    assert {entry.value.name async for entry in bucket.entries(tenant)} == {"0", "1", "2"}


async def test_a_key_cannot_widen_a_subject(bucket: Bucket[Assistant], tenant: str) -> None:
    for key in ("", f"{tenant}.*", f"{tenant}.>", "a b", "a..b", "a\r\nb"):
        with pytest.raises(BadInput):
            await bucket.get(key)


async def test_an_undecodable_value_hides_no_other_value(
    bucket: Bucket[Assistant], bus: Bus, tenant: str
) -> None:
    await durable(bus, kv_subject("assistants", f"{tenant}.bad"), b"[]", msg_id=new_id("x"))
    await bucket.put(f"{tenant}.good", assistant("good"))
    with pytest.raises(Poison):
        await bucket.get(f"{tenant}.bad")
    assert [entry.key async for entry in bucket.entries(tenant)] == [f"{tenant}.good"]


async def test_a_change_with_a_lost_acknowledgement_is_no_conflict(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    async with lossy_wire(nats_server.port) as wire:
        async with await Bus(NatsSettings(url=wire.url), name="lossy").open() as lossy:
            wire.lose_next("_INBOX")
            bucket = Bucket(lossy, "assistants", Assistant)
            creating = asyncio.create_task(bucket.create(f"{tenant}.a1", assistant("mine")))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await wire.until_lost()
                await wire.cut()
                assert await creating is not None


async def test_a_view_follows_its_bucket(bucket: Bucket[Assistant], tenant: str) -> None:
    key, other = f"{tenant}.a1", f"{tenant}.a2"
    changes: list[tuple[str, str | None]] = []
    await bucket.put(key, assistant("before"))
    async with (
        asyncio.timeout(WAIT_TIMEOUT_S),
        BucketView(
            bucket,
            on_change=lambda k, e: (
                changes.append((k, e.value.name if e else None)) if k.startswith(tenant) else None
            ),
        ) as view,
    ):
        assert [entry.value.name for entry in view.entries(f"{tenant}.")] == ["before"]
        await bucket.put(key, assistant("after"))
        await bucket.put(other, assistant("new"))
        await bucket.delete(key)
        await view.wait_for(lambda it: it.get(key) is None and it.get(other) is not None)
    assert changes == [(key, "before"), (key, "after"), (other, "new"), (key, None)]


async def test_a_view_finds_the_entries_below_a_token(bucket: Bucket[Assistant], tenant: str) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(bucket) as view:
        for key in (f"{tenant}.a2", f"{tenant}.a1", f"{tenant}x.a1"):
            await bucket.put(key, assistant(key))
        await view.wait_for(lambda it: it.get(f"{tenant}x.a1") is not None)
        assert [entry.key for entry in view.entries(f"{tenant}.")] == [f"{tenant}.a1", f"{tenant}.a2"]
        await bucket.delete(f"{tenant}.a1")
        await view.wait_for(lambda it: it.get(f"{tenant}.a1") is None)
        assert [entry.key for entry in view.entries(f"{tenant}.")] == [f"{tenant}.a2"]
        await bucket.delete(f"{tenant}.a2")
        await view.wait_for(lambda it: it.get(f"{tenant}.a2") is None)
        assert view.entries(f"{tenant}.") == []


async def test_a_view_detects_changes_that_it_was_not_notified_of(
    nats_server: NatsServer, bucket: Bucket[Assistant], tenant: str
) -> None:
    key, other = f"{tenant}.a1", f"{tenant}.a2"
    await bucket.put(key, assistant("before"))
    async with lossy_wire(nats_server.port) as wire:
        async with await Bus(NatsSettings(url=wire.url), name="lossy").open() as lossy:
            wire.lose_next(stored(kv_subject("assistants", tenant)), times=100)
            seen = Bucket(lossy, "assistants", Assistant)
            async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(seen, check_s=0.1) as view:
                await bucket.put(other, assistant("new"))
                await bucket.delete(key)
                await view.wait_for(lambda it: it.get(other) is not None and it.get(key) is None)
            assert len(wire.lost) == 2


async def test_a_view_is_correct_after_a_reconnect(
    nats_server: NatsServer, bucket: Bucket[Assistant], tenant: str
) -> None:
    async with lossy_wire(nats_server.port) as wire:
        async with await Bus(NatsSettings(url=wire.url), name="lossy").open() as lossy:
            seen = Bucket(lossy, "assistants", Assistant)
            async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(seen, check_s=3600) as view:
                await wire.cut()
                await bucket.put(f"{tenant}.a1", assistant("new"))
                await view.wait_for(lambda it: it.get(f"{tenant}.a1") is not None)


@pytest.mark.one_server
@pytest.mark.parametrize("ended", [False, True])
async def test_a_renewal_with_a_lost_acknowledgement_keeps_the_lease_unless_it_was_ended(
    nats_server: NatsServer, bus: Bus, tenant: str, ended: bool
) -> None:
    """P2: the lost acknowledgement ended the lease, and every running command with it."""
    lease = RunnerLease(runner=tenant, runner_epoch=1)
    leases = Bucket(bus, "runners", RunnerLease)
    async with lossy_wire(nats_server.port) as wire:
        async with await Bus(NatsSettings(url=wire.url), name="lossy").open() as lossy:
            held = await take_lease(lossy, lease)
            wire.lose_next("_INBOX")
            renewing = asyncio.create_task(renew_lease(lossy, lease, held, budget_s=WAIT_TIMEOUT_S))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await wire.until_lost()
                stored = await leases.get(tenant)
                assert stored is not None and stored.revision > held
                if ended:
                    await end_lease(bus, tenant, stored.revision, budget_s=WAIT_TIMEOUT_S)
                await wire.cut()
                if ended:
                    with pytest.raises(WrongLastSequence):
                        await renewing
                    assert await leases.get(tenant) is None
                else:
                    assert await renewing == stored.revision


@pytest.mark.one_server
async def test_a_renewal_that_was_lost_does_not_replace_the_lease_of_the_next_process(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    old, new = RunnerLease(runner=tenant, runner_epoch=1), RunnerLease(runner=tenant, runner_epoch=2)
    async with lossy_wire(nats_server.port) as wire:
        async with await Bus(NatsSettings(url=wire.url), name="lossy").open() as lossy:
            held = await take_lease(lossy, old)
            wire.discards_next("$KV.runners.")
            renewing = asyncio.create_task(renew_lease(lossy, old, held, budget_s=WAIT_TIMEOUT_S))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await wire.until_lost()
                taken = await take_lease(bus, new)
                await wire.cut()
                with pytest.raises(WrongLastSequence):
                    await renewing
                stored = await Bucket(bus, "runners", RunnerLease).get(tenant)
    assert stored is not None and stored.revision == taken


@pytest.mark.one_server
async def test_a_lease_expires_if_it_is_not_renewed(bus: Bus, tenant: str) -> None:
    leases = Bucket(bus, "runners", RunnerLease)
    lease = RunnerLease(runner=tenant, runner_epoch=1)
    async with asyncio.timeout(WAIT_TIMEOUT_S), BucketView(leases, ttl_s=LEASE_TTL_S[1]) as view:
        revision = await take_lease(bus, lease)
        await renew_lease(bus, lease, revision, budget_s=RENEW_EVERY_S)
        renewed_at = time.monotonic()
        await view.wait_for(lambda it: it.get(tenant) is not None)
        await view.wait_for(lambda it: it.get(tenant) is None)
        assert LEASE_TTL_S[1] - 0.5 < time.monotonic() - renewed_at < LEASE_TTL_S[1] + 5

    async def removed() -> bool:
        return await leases.get(tenant) is None

    # The server removes it a moment later.
    await eventually(removed)
    with pytest.raises(WrongLastSequence):
        await renew_lease(bus, lease, revision, budget_s=RENEW_EVERY_S)


async def test_a_restarted_runner_takes_its_lease_and_the_old_process_loses_it(bus: Bus, tenant: str) -> None:
    old, new = RunnerLease(runner=tenant, runner_epoch=1), RunnerLease(runner=tenant, runner_epoch=2)
    held = await take_lease(bus, old)
    taken = await take_lease(bus, new)
    with pytest.raises(WrongLastSequence):
        await renew_lease(bus, old, held, budget_s=RENEW_EVERY_S)
    assert await renew_lease(bus, new, taken, budget_s=RENEW_EVERY_S) > taken
