"""A stream's leader that is frozen and resumed after an election.

Until the server learns of the election, it responds to reads with its state from before the freeze, and no
client notices it. A decision that follows from such a read fails at its compare-and-set.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, EVENTS, api
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import EventLog
from banksman.contracts.errors import Unavailable
from tests.bus.builders import commit, make_approval_reply, make_approval_request
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsCluster, NatsServer
from tests.support.polling import eventually, scripted_delay

# nats-py leaves the socket of an attempt without response to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAIT_TIMEOUT_S = 60.0
MEANWHILE = 20
"""Minimum commits that the others store while the leader is frozen."""
AFTERWARDS = 100
FROZEN_S = 20.0


@dataclass
class Truth:
    """The acknowledgements of one conversation's writer, and the reads of its readers."""

    tenant: str
    stored: list[int] = field(default_factory=list[int])
    """Stream sequences of the acknowledged commits."""
    stale: list[str] = field(default_factory=list[str])
    """Reads without a commit that was acknowledged before the read."""
    leader_lags: bool = False
    """True from the freeze of a leader until it has the commits that were stored without it."""
    reads: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def write(self, log: EventLog) -> None:
        """Append one commit after another without end; each expects its predecessor."""
        while True:
            number, after = len(self.stored) + 1, self.stored[-1] if self.stored else 0
            stored = await log.append(self.tenant, "c", commit(number), after=after)
            assert isinstance(stored, int), f"commit {number} met {stored}"
            async with self.changed:
                self.stored.append(stored)
                self.changed.notify_all()

    async def watch(self, bus: Bus) -> None:
        """Read the last commit repeatedly without end."""
        log = EventLog(bus)
        while True:
            known = self.stored[-1] if self.stored and not self.leader_lags else 0
            with contextlib.suppress(Unavailable):
                last = await log.last(self.tenant, "c")
                self.reads += 1
                if (last.stream_seq if last else 0) < known:
                    self.stale.append(f"{last and last.stream_seq} where {known} was stored")
                async with self.changed:
                    self.changed.notify_all()
            await scripted_delay(0.002)

    async def more(self, count: int) -> None:
        """Wait until this many more commits are stored."""
        wanted = len(self.stored) + count
        async with asyncio.timeout(WAIT_TIMEOUT_S), self.changed:
            await self.changed.wait_for(lambda: len(self.stored) >= wanted)

    async def looked(self, count: int) -> None:
        """Wait until the readers have read this many more times."""
        wanted = self.reads + count
        async with asyncio.timeout(WAIT_TIMEOUT_S), self.changed:
            await self.changed.wait_for(lambda: self.reads > wanted)


@pytest.fixture(scope="module")
def cluster() -> Generator[NatsCluster]:
    with NatsCluster() as running:
        provision_all(running)
        yield running


@asynccontextmanager
async def traffic(cluster: NatsCluster, bus: Bus, tenant: str) -> AsyncGenerator[Truth]:
    """Run one writer, and readers at every server."""
    truth = Truth(tenant)
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(await connect(node)) for node in cluster.nodes]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(truth.write(EventLog(bus)))]
            tasks += [group.create_task(truth.watch(reader)) for reader in readers]
            yield truth
            for task in tasks:
                task.cancel()


async def leader_of(cluster: NatsCluster, bus: Bus, stream: str) -> NatsServer:
    info = await call(bus, api("STREAM.INFO", stream), budget_s=WAIT_TIMEOUT_S)
    return cluster.node(info["cluster"]["leader"])


async def freeze_leader(cluster: NatsCluster, bus: Bus, truth: Truth, *, at_least_s: float = 0.0) -> None:
    """Freeze the leader of the logs until the others have elected a new one, and resume it."""
    leader = cluster.node(
        (await call(bus, api("STREAM.INFO", EVENTS), budget_s=WAIT_TIMEOUT_S))["cluster"]["leader"]
    )
    began, truth.leader_lags = time.monotonic(), True
    leader.pause()
    try:
        await truth.more(MEANWHILE)
        await scripted_delay(began + at_least_s - time.monotonic())
    finally:
        leader.resume()
    newest = truth.stored[-1]
    await eventually(lambda: leader.last_seq(EVENTS) >= newest)
    truth.leader_lags = False
    await truth.more(AFTERWARDS)
    await truth.looked(AFTERWARDS)
    await asyncio.to_thread(leader.wait_ready)


async def is_whole(bus: Bus, truth: Truth) -> None:
    commits = await EventLog(bus).read(truth.tenant, "c", leader=True)
    assert [stored.commit.first_seq for stored in commits] == list(range(1, len(commits) + 1))
    assert [stored.stream_seq for stored in commits[: len(truth.stored)]] == truth.stored
    assert len(commits) - len(truth.stored) <= 1, "the last append was not waited for"
    assert truth.reads > AFTERWARDS
    assert truth.stale == []


@pytest.mark.timeout(180)
async def test_a_resumed_leader_that_has_caught_up_returns_no_stale_data_and_stores_nothing_twice(
    cluster: NatsCluster, tenant: str
) -> None:
    """P1, P5: every commit is stored once, in order; every later read contains those acknowledged before."""
    async with await connect(cluster) as bus:
        async with traffic(cluster, bus, tenant) as truth:
            await truth.more(MEANWHILE)
            await freeze_leader(cluster, bus, truth)
        await is_whole(bus, truth)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_ten_leaders_frozen_for_twenty_seconds_return_no_stale_data(
    cluster: NatsCluster, tenant: str
) -> None:
    """The previous test ten times; the servers give up each frozen leader: `make leader-kills`."""
    async with await connect(cluster) as bus:
        async with traffic(cluster, bus, tenant) as truth:
            await truth.more(MEANWHILE)
            for _ in range(10):
                await freeze_leader(cluster, bus, truth, at_least_s=FROZEN_S)
        await is_whole(bus, truth)
        print(f"{len(truth.stored)} commits, {truth.reads} reads, {len(truth.stale)} stale")  # noqa: T201


@pytest.mark.timeout(180)
async def test_an_approval_decided_while_a_leader_is_frozen_has_one_decision_afterwards(
    cluster: NatsCluster, tenant: str
) -> None:
    """P3: requests to the resumed leader return the decision that was made without it."""
    async with await connect(cluster) as bus, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await connect(node)) for node in cluster.nodes]
        await ApprovalSlots(bus).store_request(make_approval_request(tenant, "a1"))
        leader = await leader_of(cluster, bus, APPROVALS)
        leader.pause()
        try:
            first = await ApprovalSlots(bus).store_reply(make_approval_reply(tenant, "a1", by="first"))
        finally:
            leader.resume()
        async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as group:
            later = [
                group.create_task(
                    ApprovalSlots(one).store_reply(make_approval_reply(tenant, "a1", by=f"late-{number}"))
                )
                for number, one in enumerate(clients)
            ]
        _, stored = await ApprovalSlots(bus).read(tenant, "a1")
    assert [task.result() for task in later] == [first] * 3
    assert stored == first
