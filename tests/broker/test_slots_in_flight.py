"""Write-once slots of three servers, while what was written first is not stored by most of them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import SlotTaken
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, api
from banksman.bus.publish import durable
from banksman.bus.slots import ApprovalSlots
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.testing.fixtures import connect, provision_all
from banksman.testing.nats import NatsCluster, NatsServer
from tests.bus.making import answered, asked

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 30.0


@pytest.fixture
def cluster() -> Generator[NatsCluster]:
    with NatsCluster() as running:
        provision_all(running)
        yield running


async def test_who_is_refused_because_of_an_answer_that_is_still_on_its_way_is_told_that_answer(
    cluster: NatsCluster, tenant: str
) -> None:
    """P3, A08: the leader refuses the second answer before the first is stored, and cannot show it yet."""
    async with await connect(cluster) as bus:
        leader, *followers = await _leader_first(cluster, bus)
        async with await connect(leader) as direct:
            slots = ApprovalSlots(direct)
            await slots.request(asked(tenant, "a1"))
            reply = subjects.approval_reply(tenant, "a1")
            for follower in followers:
                follower.pause()
            try:
                async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                    racers = [
                        group.create_task(slots.reply(answered(tenant, "a1", by=name)))
                        for name in ("alice", "bob", "carol")
                    ]
                    await asyncio.sleep(0)
                    # On the same connection, so the others have been refused before.
                    with pytest.raises(SlotTaken):
                        await durable(direct, reply, b"late", msg_id=new_id("answer-"))
                    _, seen = await slots.approval(tenant, "a1")
                    for follower in followers:
                        follower.resume()
            finally:
                for follower in followers:
                    follower.resume()
            _, stored = await slots.approval(tenant, "a1")
    assert (seen, stored is None) == (None, False)
    assert [racer.result() for racer in racers] == [stored] * 3


async def _leader_first(cluster: NatsCluster, bus: Bus) -> list[NatsServer]:
    name = (await call(bus, api("STREAM.INFO", APPROVALS)))["cluster"]["leader"]
    return sorted(cluster.nodes, key=lambda node: node.name != name)
