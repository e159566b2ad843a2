"""A cluster of three servers keeps acknowledged messages when leaders are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.jetstream import call
from banksman.bus.names import AGENTS, EVENTS, RUNS, api
from banksman.bus.publish import durable
from banksman.bus.queues.work import Done, Outcome, WorkMessage, work
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.live import LiveHub
from banksman.bus.storage.log import EventLog, StoredCommit
from banksman.contracts import subjects
from banksman.deployment.streams import provision, verify
from banksman.deployment.topology import StorageBudget, app_topology
from tests.bus.builders import commit, make_approval_reply, make_approval_request
from tests.support.nats import NatsCluster
from tests.support.timeouts import deadline

pytestmark = pytest.mark.timeout(60)
BUDGET = StorageBudget(1024**3)
START_S = 45.0
"""Seconds until a server must have started; the limit of each test is 60."""


@pytest.fixture
def cluster() -> Generator[NatsCluster]:
    with NatsCluster() as running:
        yield running


async def connect(cluster: NatsCluster) -> Bus:
    return await Bus(NatsSettings(url=cluster.urls), name="test").open()


async def leader(bus: Bus, stream: str) -> str:
    return (await call(bus, api("STREAM.INFO", stream)))["cluster"]["leader"]


async def test_acked_messages_survive_killed_leaders(cluster: NatsCluster) -> None:
    """Appends, work and decisions continue; followers miss nothing; no work runs twice concurrently."""
    done: dict[bytes, int] = {}
    finished = asyncio.Event()
    seen: list[int] = []

    async def handler(message: WorkMessage) -> Outcome:
        done[message.data] = done.get(message.data, 0) + 1
        if len(done) == 60:
            finished.set()
        return Done()

    def on_commit(stored: StoredCommit) -> None:
        seen.append(stored.commit.first_seq)

    stop = asyncio.Event()
    async with await connect(cluster) as bus, await connect(cluster) as watching:
        await provision(bus, app_topology(BUDGET, replicas=3))
        assert await verify(bus, app_topology(BUDGET, replicas=3)) == ()
        log = EventLog(bus)
        async with LiveHub(EventLog(watching), check_s=0.5) as hub, asyncio.TaskGroup() as tasks:
            tasks.create_task(work(bus, RUNS, AGENTS, handler, slots=4, stop=stop))
            await hub.follow("t", "c", after_stream_seq=0, on_commit=on_commit)
            after = 0
            for number in range(60):
                if number == 20:
                    cluster.node(await leader(bus, EVENTS)).kill()
                stored = await log.append("t", "c", commit(number + 1), after=after)
                assert isinstance(stored, int)
                after = stored
                await durable(bus, subjects.run_work("t", "c"), b"%d" % number, msg_id=f"m{number}")
            async with asyncio.timeout(30):
                await finished.wait()
            commits = await log.read("t", "c", leader=True)
            assert [it.commit.first_seq for it in commits] == list(range(1, 61))
            async with asyncio.timeout(30):
                while len(seen) < 60:
                    await bus.ready(5)
            stop.set()
        assert seen == list(range(1, 61))
        assert done.keys() == {b"%d" % number for number in range(60)}
        approvals = ApprovalSlots(bus)
        await approvals.store_request(make_approval_request("t", "a1"))
        first = await approvals.store_reply(make_approval_reply("t", "a1", by="alice"))
        assert await approvals.store_reply(make_approval_reply("t", "a1", by="bob")) == first


async def test_provisioning_waits_for_a_restarting_server(cluster: NatsCluster) -> None:
    """While a server starts, the cluster refuses streams with three replicas for lack of peers."""
    last = cluster.nodes[2]
    async with await Bus(NatsSettings(url=cluster.urls[:2]), name="test").open() as bus:
        await asyncio.to_thread(last.stop)
        last.launch()
        coming = asyncio.create_task(asyncio.to_thread(last.wait_ready))
        made = 0
        async with deadline("the server did not start, or 50 streams were not created", START_S):
            while not coming.done() or made < 50:
                config = {"name": f"S{made}", "subjects": [f"s{made}"], "num_replicas": 3}
                await call(bus, api("STREAM.CREATE", f"S{made}"), config)
                made += 1
        await coming
