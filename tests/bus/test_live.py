"""Followers of logs receive each commit once and in order, even when messages are lost in transit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.publish import durable
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog, StoredCommit
from banksman.contracts import subjects
from tests.bus.builders import commit
from tests.support.lossy import LossyWire, lossy_wire
from tests.support.nats import NatsServer
from tests.support.polling import eventually, let_others_run
from tests.support.timeouts import WAIT_TIMEOUT_S


class Follower:
    """Stores the commits that it receives."""

    def __init__(self) -> None:
        self.commits: list[StoredCommit] = []
        self._received = asyncio.Event()

    def __call__(self, stored: StoredCommit) -> None:
        self.commits.append(stored)
        self._received.set()

    @property
    def seqs(self) -> list[int]:
        return [stored.commit.first_seq for stored in self.commits]

    async def until(self, condition: Callable[[list[int]], bool]) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not condition(self.seqs):
                self._received.clear()
                await self._received.wait()


class Writer:
    """Appends to one log."""

    def __init__(self, bus: Bus, tenant: str, conversation: str) -> None:
        self.log = EventLog(bus)
        self._where = (tenant, conversation)
        self._after = 0
        self._seq = 0

    async def append(self, count: int = 1) -> None:
        for _ in range(count):
            self._seq += 1
            stored = await self.log.append(*self._where, commit(self._seq), after=self._after)
            assert isinstance(stored, int)
            self._after = stored

    @property
    def position(self) -> int:
        return self._after

    @property
    def count(self) -> int:
        return self._seq


@pytest.fixture
def writer(bus: Bus, tenant: str, conversation: str) -> Writer:
    return Writer(bus, tenant, conversation)


@pytest.fixture
async def hub(bus: Bus) -> AsyncGenerator[LiveHub]:
    async with LiveHub(EventLog(bus)) as running:
        yield running


@pytest.fixture
async def wire(nats_server: NatsServer) -> AsyncGenerator[LossyWire]:
    async with lossy_wire(nats_server.port) as running:
        yield running


@pytest.fixture
async def lossy_bus(wire: LossyWire) -> AsyncGenerator[Bus]:
    async with await Bus(NatsSettings(url=wire.url, connect_timeout_s=5), name="lossy").open() as connected:
        yield connected


async def test_a_follower_receives_stored_commits_and_then_live_ones(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    await writer.append(3)
    follower = Follower()
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
    assert follower.seqs == [1, 2, 3]
    await writer.append(3)
    await follower.until(lambda seqs: len(seqs) == 6)
    assert follower.seqs == [1, 2, 3, 4, 5, 6]


async def test_joining_during_appends_misses_no_commit(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    followers = [Follower() for _ in range(20)]
    joined = asyncio.Event()

    async def write() -> None:
        while not joined.is_set():
            await writer.append()
        await writer.append(5)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for follower in followers:
            await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
            have = len(follower.seqs)
            await followers[0].until(lambda seqs, have=have: len(seqs) > have)
        joined.set()
    for follower in followers:
        await follower.until(lambda seqs: len(seqs) >= writer.count)
        assert follower.seqs == list(range(1, writer.count + 1))


async def test_a_follower_starts_at_the_given_position(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    await writer.append(2)
    middle = writer.position
    await writer.append(2)
    early, late = Follower(), Follower()
    await hub.follow(tenant, conversation, after_stream_seq=middle, on_commit=early)
    await hub.follow(tenant, conversation, after_stream_seq=writer.position, on_commit=late)
    await writer.append(1)
    await early.until(lambda seqs: len(seqs) == 3)
    await late.until(lambda seqs: len(seqs) == 1)
    assert (early.seqs, late.seqs) == ([3, 4, 5], [5])


@pytest.mark.one_server
async def test_followers_of_a_conversation_share_one_subscription(
    nats_server: NatsServer, hub: LiveHub, bus: Bus, tenant: str, conversation: str
) -> None:
    await bus.ready()
    before = nats_server.varz()["subscriptions"]
    opened = [
        await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=Follower()) for _ in range(5)
    ]
    await bus.ready()
    assert nats_server.varz()["subscriptions"] == before + 1
    assert len(hub.channels) == 1
    for following in opened:
        await following.close()
    await bus.ready()
    assert nats_server.varz()["subscriptions"] == before
    assert len(hub.channels) == 0


async def test_a_closed_follower_receives_no_further_commit(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    stays, leaves = Follower(), Follower()
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=stays)
    following = await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=leaves)
    await following.close()
    await writer.append()
    await stays.until(lambda seqs: seqs == [1])
    assert leaves.seqs == []


async def test_a_commit_lost_in_transit_is_read_when_its_successor_arrives(
    wire: LossyWire, lossy_bus: Bus, writer: Writer, tenant: str, conversation: str
) -> None:
    follower = Follower()
    # The hub does not compare with the stream here, so only the gap shows the loss.
    async with LiveHub(EventLog(lossy_bus), check_s=3600, first_check_s=3600) as hub:
        await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
        await writer.append()
        wire.lose_next(subjects.live(tenant, conversation), times=2)
        await writer.append(3)
        await follower.until(lambda seqs: len(seqs) == 4)
    assert follower.seqs == [1, 2, 3, 4]
    assert wire.lost == [subjects.live(tenant, conversation)] * 2


async def test_a_lost_last_commit_is_detected_by_comparison(
    wire: LossyWire, lossy_bus: Bus, writer: Writer, tenant: str, conversation: str
) -> None:
    follower = Follower()
    async with LiveHub(EventLog(lossy_bus), check_s=0.1, first_check_s=0.1) as hub:
        await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
        wire.lose_next(subjects.live(tenant, conversation))
        await writer.append()
        await follower.until(lambda seqs: seqs == [1])
    assert wire.lost


async def test_commits_stored_during_a_disconnection_arrive_after_the_reconnect(
    wire: LossyWire, lossy_bus: Bus, writer: Writer, tenant: str, conversation: str
) -> None:
    follower = Follower()
    async with LiveHub(EventLog(lossy_bus), check_s=3600, first_check_s=3600) as hub:
        await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
        await wire.cut()
        await writer.append(2)
        await follower.until(lambda seqs: len(seqs) == 2)
        await writer.append()
        await follower.until(lambda seqs: len(seqs) == 3)
    assert follower.seqs == [1, 2, 3]


async def test_an_invalid_commit_neither_reaches_followers_nor_stops_them(
    bus: Bus, hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    follower = Follower()
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
    await bus.publish(subjects.live(tenant, conversation), b"not a commit")
    await bus.publish(subjects.live(tenant, conversation), b"{}", {"Nats-Sequence": "999999999"})
    await writer.append()
    await follower.until(lambda seqs: seqs == [1])


async def test_a_follower_that_fails_does_not_stop_the_others(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    def fails(stored: StoredCommit) -> None:
        raise ValueError("a bug")

    follower = Follower()
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=fails)
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
    await writer.append(2)
    await follower.until(lambda seqs: seqs == [1, 2])


async def test_a_tail_is_an_endless_iterator(
    hub: LiveHub, writer: Writer, tenant: str, conversation: str
) -> None:
    await writer.append()
    async with asyncio.timeout(WAIT_TIMEOUT_S), hub.tail(tenant, conversation) as commits:
        assert (await anext(commits)).commit.first_seq == 1
        await writer.append()
        assert (await anext(commits)).commit.first_seq == 2
    assert len(hub.channels) == 0


async def test_a_thousand_conversations_are_followed_on_one_connection(
    bus: Bus, hub: LiveHub, tenant: str
) -> None:
    followers = {f"c{number}": Follower() for number in range(1000)}
    for conversation, follower in followers.items():
        await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
    assert len(hub.channels) == 1000
    log = EventLog(bus)
    for conversation in ("c0", "c500", "c999"):
        await log.append(tenant, conversation, commit(1), after=0)
        await followers[conversation].until(lambda seqs: seqs == [1])
    assert sum(len(follower.commits) for follower in followers.values()) == 3


async def test_followers_receive_only_commits_that_the_stream_accepted(
    bus: Bus, hub: LiveHub, tenant: str, conversation: str
) -> None:
    follower = Follower()
    await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
    log = EventLog(bus)
    await log.append(tenant, conversation, commit(1, title="accepted"), after=0)
    await log.append(tenant, conversation, commit(1, title="refused"), after=0)
    await follower.until(lambda seqs: seqs == [1])
    await durable(bus, subjects.tool_started(tenant, "k-1"), b"{}", msg_id=tenant)
    await bus.ready()
    assert follower.seqs == [1]


async def test_closing_a_follower_does_not_wait_for_an_unavailable_broker(
    own_nats: NatsServer, own_bus: Bus, tenant: str, conversation: str
) -> None:
    """P16. Another task compares the log at that moment and waits for the broker."""
    follower = Follower()
    async with LiveHub(EventLog(own_bus)) as hub:
        following = await hub.follow(tenant, conversation, after_stream_seq=0, on_commit=follower)
        own_nats.kill()
        await eventually(lambda: not own_bus.connected)
        comparing = asyncio.create_task(following.channel.check())
        await let_others_run()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await following.close()
        assert not comparing.done()
        assert len(hub.channels) == 0
        comparing.cancel()
        await asyncio.wait([comparing])
