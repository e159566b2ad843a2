"""The notifications that an owner gets of its calls."""

from __future__ import annotations

import asyncio

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.slots import AttemptSlots, CallSlots, StoredSlot, watch_results
from banksman.contracts.calls import CallFinished
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.runs.conversation_log import ConversationLog
from banksman.runs.notifications import OwnerNotifications


async def test_a_result_stored_by_another_tenant_is_ignored(bus: Bus, tenant: str, conversation: str) -> None:
    """P8: a tenant's tool server may store results under its own tenant, for any id that it knows."""
    call_id = new_id("k")
    attempt = f"{call_id}-1"
    forged = CallFinished(
        conversation_id=conversation,
        attempt=attempt,
        result=ToolResult(tool_call_id=call_id, content={"success": True}, runner="mallory"),
    )
    notified = asyncio.Event()

    async def stored(fact: StoredSlot) -> None:
        if fact.attempt == attempt:
            notified.set()

    log = EventLog(bus)
    async with (
        LiveHub(log) as hub,
        BrokerClock(bus) as clock,
        OwnerNotifications(bus, hub, ConversationLog(log.bus), clock) as watch,
    ):
        assert watch.slots(tenant, attempt) == AttemptSlots()
        subscriptions = await watch_results(bus, stored)
        await CallSlots(bus).store_result(new_id("t"), forged)
        async with asyncio.timeout(30):
            await notified.wait()
        await bus.ready()
        assert watch.slots(tenant, attempt) == AttemptSlots()
        await CallSlots(bus).store_result(tenant, forged)
        async with asyncio.timeout(30):
            while watch.slots(tenant, attempt) == AttemptSlots():
                await bus.ready()
    for subscription in subscriptions:
        await subscription.unsubscribe()
