"""The event logs: one writer wins, no commit is missed, a lost acknowledgement is no conflict."""

from __future__ import annotations

import asyncio

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import LogBroken, MessageTooLarge
from banksman.bus.jetstream import BATCH_MESSAGES, delete_message
from banksman.bus.publish import durable
from banksman.bus.storage.log import AppendConflict, EventLog
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.events import Owner
from tests.bus.builders import commit
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
def log(bus: Bus) -> EventLog:
    return EventLog(bus)


async def append_all(log: EventLog, tenant: str, conversation: str, count: int, *, after: int = 0) -> int:
    for seq in range(1, count + 1):
        stored = await log.append(tenant, conversation, commit(seq), after=after)
        assert isinstance(stored, int)
        after = stored
    return after


async def test_commits_are_read_in_order_with_their_predecessors(
    log: EventLog, tenant: str, conversation: str
) -> None:
    first = await log.append(tenant, conversation, one := commit(1), after=0)
    assert isinstance(first, int)
    second = await log.append(tenant, conversation, two := commit(2), after=first, snapshot=first)
    commits = await log.read(tenant, conversation)
    assert [(stored.stream_seq, stored.prev, stored.snapshot, stored.commit) for stored in commits] == [
        (first, 0, 0, one),
        (second, first, first, two),
    ]
    assert await log.read(tenant, conversation, after=first) == commits[1:]
    assert await log.last(tenant, conversation) == commits[1]


async def test_an_empty_log_has_no_last_commit(log: EventLog, tenant: str, conversation: str) -> None:
    assert await log.last(tenant, conversation) is None
    assert await log.read(tenant, conversation) == []
    assert await log.read(tenant, conversation, leader=True) == []
    assert not await log.more(tenant, conversation, after=0)


async def test_one_of_two_appends_after_the_same_commit_wins(
    log: EventLog, tenant: str, conversation: str
) -> None:
    async with asyncio.TaskGroup() as tasks:
        racers = [
            tasks.create_task(log.append(tenant, conversation, commit(1, title=f"racer {n}"), after=0))
            for n in range(8)
        ]
    results = [racer.result() for racer in racers]
    won = [result for result in results if isinstance(result, int)]
    lost = [result for result in results if isinstance(result, AppendConflict)]
    assert len(won) == 1
    assert lost == [AppendConflict(won[0])] * 7
    assert len(await log.read(tenant, conversation)) == 1


async def test_a_fenced_owner_cannot_append(log: EventLog, tenant: str, conversation: str) -> None:
    """Its append conflicts with the claim of the takeover, which has the higher epoch."""
    first = await log.append(
        tenant, conversation, commit(1, owner=Owner(agent="a1", owner_epoch=1, work_seq=1)), after=0
    )
    assert isinstance(first, int)
    claim = commit(2, owner=Owner(agent="a2", owner_epoch=2, work_seq=1))
    second = await log.append(tenant, conversation, claim, after=first)
    assert isinstance(second, int)
    assert await log.append(tenant, conversation, commit(2), after=first) == AppendConflict(second)
    (met,) = await log.read(tenant, conversation, after=first, leader=True)
    assert met.commit.owner is not None and met.commit.owner.owner_epoch == 2


@pytest.mark.parametrize("another_followed", [False, True])
async def test_an_append_with_a_lost_acknowledgement_is_no_conflict(
    nats_server: NatsServer, log: EventLog, tenant: str, conversation: str, another_followed: bool
) -> None:
    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as lossy:
            wire.lose_next("_INBOX")
            mine = commit(1)
            appending = asyncio.create_task(EventLog(lossy).append(tenant, conversation, mine, after=0))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await wire.until_lost()
                if another_followed:
                    (stored,) = await log.read(tenant, conversation, leader=True)
                    await log.append(tenant, conversation, commit(2), after=stored.stream_seq)
                await wire.cut()
                position = await appending
    assert position == (await log.read(tenant, conversation))[0].stream_seq


async def test_a_log_longer_than_one_batch_is_read_completely(
    log: EventLog, tenant: str, conversation: str
) -> None:
    count = 2 * BATCH_MESSAGES + 3
    await append_all(log, tenant, conversation, count)
    for leader in (False, True):
        commits = await log.read(tenant, conversation, leader=leader)
        assert [stored.commit.first_seq for stored in commits] == list(range(1, count + 1))


async def test_a_long_log_of_large_commits_is_read_completely(
    log: EventLog, tenant: str, conversation: str
) -> None:
    """The server also limits a batch by bytes."""
    after = 0
    for seq in range(1, 13):
        stored = await log.append(tenant, conversation, commit(seq, title="x" * 600_000), after=after)
        assert isinstance(stored, int)
        after = stored
    assert len(await log.read(tenant, conversation)) == 12


async def test_other_conversations_and_tenants_are_not_read(
    log: EventLog, tenant: str, conversation: str
) -> None:
    await append_all(log, tenant, conversation, 2)
    await append_all(log, tenant, f"{conversation}x", 3)
    await append_all(log, f"{tenant}x", conversation, 4)
    assert len(await log.read(tenant, conversation)) == 2


async def test_a_permanently_missing_commit_is_reported(
    log: EventLog, tenant: str, conversation: str
) -> None:
    """A server with a damaged file loses messages without an error."""
    await append_all(log, tenant, conversation, 3)
    first, second, third = await log.read(tenant, conversation)
    assert await delete_message(log.bus, "EVENTS", second.stream_seq)
    with pytest.raises(LogBroken) as broken:
        await log.read(tenant, conversation)
    assert (
        broken.value.problem == f"the commit after message {first.stream_seq} is missing, "
        f"the next one follows message {second.stream_seq}"
    )
    assert await log.read(tenant, conversation, after=second.stream_seq) == [third]


async def test_an_invalid_commit_is_poison(log: EventLog, tenant: str, conversation: str) -> None:
    await durable(log.bus, subjects.conversation(tenant, conversation), b"{}", msg_id=f"{tenant}:x")
    with pytest.raises(Poison):
        await log.last(tenant, conversation)


async def test_an_oversized_commit_is_refused(log: EventLog, tenant: str, conversation: str) -> None:
    with pytest.raises(MessageTooLarge):
        await log.append(tenant, conversation, commit(1, title="x" * 1_100_000), after=0)


async def test_a_purged_log_retains_its_tombstone_and_is_readable_from_the_start(
    log: EventLog, tenant: str, conversation: str
) -> None:
    last = await append_all(log, tenant, conversation, 3)
    assert await log.purge(tenant, conversation) == 2
    [tombstone] = await log.read(tenant, conversation, leader=True)
    assert (tombstone.stream_seq, tombstone.commit.first_seq) == (last, 3)
    assert isinstance(await log.append(tenant, conversation, commit(1), after=0), AppendConflict)


async def test_a_purge_up_to_a_tombstone_retains_later_commits(
    log: EventLog, tenant: str, conversation: str
) -> None:
    """P1: a commit after the tombstone must not replace it."""
    tombstone = await append_all(log, tenant, conversation, 3)
    late = await log.append(tenant, conversation, commit(4), after=tombstone)
    assert await log.purge(tenant, conversation, before=tombstone) == 2
    stored = await log.read(tenant, conversation, leader=True)
    assert [one.stream_seq for one in stored] == [tombstone, late]


async def test_a_log_survives_a_restart_of_the_server(own_nats: NatsServer, own_bus: Bus) -> None:
    log = EventLog(own_bus)
    after = await append_all(log, "t", "c", 5)
    own_nats.restart()
    assert isinstance(await log.append("t", "c", commit(6), after=after), int)
    assert [stored.commit.first_seq for stored in await log.read("t", "c")] == [1, 2, 3, 4, 5, 6]
