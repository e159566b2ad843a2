"""The notifications that an owner gets: of its calls, and of the commits of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.publish import RunQueue
from banksman.bus.storage.log import EventLog
from banksman.bus.storage.slots import AttemptSlots, CallSlots, StoredSlot, watch_slots
from banksman.contracts.calls import CallFinished, CallStarted
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.runs.bus_ports import OwnerNotifications
from banksman.runs.state import Conversation
from tests.bus.builders import commit
from tests.support.fixtures import connect
from tests.support.nats import NatsServer
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
async def clock(bus: Bus) -> AsyncGenerator[BrokerClock]:
    async with BrokerClock(bus) as clock:
        yield clock


@pytest.fixture
async def watch(bus: Bus, clock: BrokerClock) -> AsyncGenerator[OwnerNotifications]:
    async with OwnerNotifications(bus, clock) as watch:
        yield watch


def result(conversation: str, call_id: str) -> CallFinished:
    return CallFinished(
        conversation_id=conversation,
        attempt=f"{call_id}-1",
        result=ToolResult(tool_call_id=call_id, content={"success": True}, runner="mallory"),
    )


async def test_a_result_stored_by_another_tenant_is_ignored(
    bus: Bus, watch: OwnerNotifications, tenant: str, conversation: str
) -> None:
    """P8: a tenant's tool server may store results under its own tenant, for any id that it knows."""
    forged = result(conversation, new_id("k"))
    attempt = forged.attempt
    notified = asyncio.Event()

    def stored(fact: StoredSlot) -> None:
        if fact.attempt == attempt:
            notified.set()

    state = Conversation(tenant, conversation)
    async with watch.following(state):
        assert await watch.slots(state, attempt) == AttemptSlots()
        subscription = await watch_slots(bus, stored)
        await CallSlots(bus).store_result(new_id("t"), forged)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await notified.wait()
        await bus.ready()
        assert await watch.slots(state, attempt) == AttemptSlots()
        await CallSlots(bus).store_result(tenant, forged)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while await watch.slots(state, attempt) == AttemptSlots():
                await bus.ready()
        await subscription.unsubscribe()


async def test_a_process_receives_the_slots_of_its_own_calls_only(
    nats_server: NatsServer, bus: Bus, clock: BrokerClock, tenant: str, conversation: str
) -> None:
    """Otherwise each of n agents would receive six messages of every run of all others."""
    calls, slots = [result(conversation, new_id("k")) for _ in range(2)], CallSlots(bus)
    state = Conversation(tenant, conversation)
    async with (
        await connect(nats_server) as own,
        OwnerNotifications(own, clock) as watch,
        watch.following(state),
    ):
        await watch.slots(state, calls[1].attempt)
        await own.ready()
        received = own.nc.stats["in_msgs"]
        await slots.store_result(tenant, calls[0])
        await own.ready()
        # The reply to `ready` alone.
        assert own.nc.stats["in_msgs"] == received + 1

        await slots.store_result(tenant, calls[1])
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while await watch.slots(state, calls[1].attempt) == AttemptSlots():
                await own.ready()
        # A concluded call is no longer followed, even if its tool server stores something for it.
        await watch.forget(state, [calls[1].attempt])
        await own.ready()
        received = own.nc.stats["in_msgs"]
        started = CallStarted(
            conversation_id=conversation, attempt=calls[1].attempt, runner="mallory", ts=clock.now()
        )
        await slots.store_started(tenant, started)
        await own.ready()
        assert own.nc.stats["in_msgs"] == received + 1


async def test_an_owner_reads_its_log_for_commits_of_others_and_hints_only(
    bus: Bus, clock: BrokerClock, watch: OwnerNotifications, tenant: str, conversation: str
) -> None:
    """Its own commits are in its state, and a result is committed by compare-and-set without a read."""
    log, later = EventLog(bus), clock.now() + timedelta(seconds=WAIT_TIMEOUT_S)
    state, finished = Conversation(tenant, conversation), result(conversation, new_id("k"))
    async with watch.following(state):
        await watch.slots(state, finished.attempt)
        await bus.ready()
        own = await log.append(tenant, conversation, commit(1), after=0)
        assert isinstance(own, int)
        state = replace(state, stream_seq=own)
        await CallSlots(bus).store_result(tenant, finished)
        assert not await watch.wait(state, later)
        assert (await watch.slots(state, finished.attempt)).finished == finished
        await log.append(tenant, conversation, commit(2), after=own)
        assert await watch.wait(state, later)
        await RunQueue(bus).wake_owner(tenant, conversation)
        assert await watch.wait(replace(state, stream_seq=own + 1_000_000), later)


async def test_an_owner_that_was_not_notified_reads_its_log_after_a_second(
    watch: OwnerNotifications, clock: BrokerClock, tenant: str, conversation: str
) -> None:
    state = Conversation(tenant, conversation)
    async with watch.following(state):
        began = clock.now()
        assert await watch.wait(state, began + timedelta(seconds=WAIT_TIMEOUT_S))
        assert clock.now() - began < timedelta(seconds=WAIT_TIMEOUT_S / 2)
