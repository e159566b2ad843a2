"""Responses of three servers while the first write is in flight and not yet stored by a majority."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import SlotTaken
from banksman.bus.jetstream import call
from banksman.bus.names import APPROVALS, CODE_DUPLICATE_UNDER_WAY, MSG_ID, RESULTS, api
from banksman.bus.publish import durable, message_id
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from tests.bus.builders import make_approval_reply, make_approval_request
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsCluster, NatsServer
from tests.support.polling import let_others_run
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Generator[NatsCluster]:
    with NatsCluster() as running:
        provision_all(running)
        yield running


async def test_late_decision_returns_the_winning_decision(cluster: NatsCluster, tenant: str) -> None:
    """P3, A08: the leader refuses the second decision before the first is stored and readable."""
    async with at_the_leader(cluster, APPROVALS) as (bus, followers):
        slots = ApprovalSlots(bus)
        await slots.store_request(make_approval_request(tenant, "a1"))
        async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as group:
            with frozen(followers):
                racers = [
                    group.create_task(slots.store_reply(make_approval_reply(tenant, "a1", by=name)))
                    for name in ("alice", "bob", "carol")
                ]
                await let_others_run()
                # On the same connection, so the others have been refused before.
                with pytest.raises(SlotTaken):
                    await durable(
                        bus, subjects.approval_reply(tenant, "a1"), b"late", msg_id=new_id("answer-")
                    )
                _, seen = await slots.read(tenant, "a1")
        _, stored = await slots.read(tenant, "a1")
    assert (seen, stored is None) == (None, False)
    assert [racer.result() for racer in racers] == [stored] * 3


async def test_a_message_sent_again_while_in_flight_is_stored_once(cluster: NatsCluster, tenant: str) -> None:
    """P1, P14: a repeated request waits until the first is stored, and reports the duplicate."""
    subject = subjects.tool_started(tenant, "k-1")
    async with at_the_leader(cluster, RESULTS) as (bus, followers):
        async with asyncio.timeout(WAIT_TIMEOUT_S), asyncio.TaskGroup() as group:
            with frozen(followers):
                first = group.create_task(durable(bus, subject, b"{}", msg_id="once"))
                await let_others_run()
                message = {MSG_ID: message_id(subject, "once")}
                response = await bus.replies.request(
                    subject, b"{}", headers=message, timeout_s=WAIT_TIMEOUT_S
                )
                second = group.create_task(durable(bus, subject, b"{}", msg_id="once"))
                await bus.ready(WAIT_TIMEOUT_S)
    assert json.loads(response.data)["error"]["err_code"] == CODE_DUPLICATE_UNDER_WAY
    assert (first.result().duplicate, first.result().tries) == (False, 1)
    assert (second.result().duplicate, second.result().tries) == (True, 1)
    assert first.result().stream_seq == second.result().stream_seq


@asynccontextmanager
async def at_the_leader(
    cluster: NatsCluster, stream: str
) -> AsyncGenerator[tuple[Bus, tuple[NatsServer, ...]]]:
    """A connection to the leader of a stream, and the servers that follow it."""
    async with await connect(cluster) as bus:
        name = (await call(bus, api("STREAM.INFO", stream)))["cluster"]["leader"]
    async with await connect(cluster.node(name)) as bus:
        yield bus, tuple(node for node in cluster.nodes if node.name != name)


@contextmanager
def frozen(nodes: tuple[NatsServer, ...]) -> Generator[None]:
    for node in nodes:
        node.pause()
    try:
        yield
    finally:
        for node in nodes:
            node.resume()
