"""What an owner hears of its calls."""

from __future__ import annotations

import asyncio

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.live import LiveHub
from banksman.bus.log import EventLog
from banksman.bus.slots import CallSlots, StoredFact, watch_results
from banksman.contracts.calls import CallFinished
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.runs.folded_log import FoldedLog
from banksman.runs.ports import Facts
from banksman.runs.stores import Watch


async def test_what_another_tenant_stores_for_a_call_is_no_result_of_it(
    bus: Bus, tenant: str, conversation: str
) -> None:
    """P8: a tenant's tool server may store results under its tenant's name, for any id that it knows."""
    call_id = new_id("k")
    attempt = f"{call_id}-1"
    forged = CallFinished(
        conversation_id=conversation,
        attempt=attempt,
        result=ToolResult(tool_call_id=call_id, content={"success": True}, runner="mallory"),
    )
    heard = asyncio.Event()

    async def stored(fact: StoredFact) -> None:
        if fact.attempt == attempt:
            heard.set()

    log = EventLog(bus)
    async with (
        LiveHub(log) as hub,
        BrokerClock(bus) as clock,
        Watch(bus, hub, FoldedLog(log), clock) as watch,
    ):
        assert watch.facts(tenant, attempt) == Facts()
        subscriptions = await watch_results(bus, stored)
        await CallSlots(bus).put_result(new_id("t"), forged)
        async with asyncio.timeout(30):
            await heard.wait()
        await bus.ready()
        assert watch.facts(tenant, attempt) == Facts()
        await CallSlots(bus).put_result(tenant, forged)
        async with asyncio.timeout(30):
            while watch.facts(tenant, attempt) == Facts():
                await bus.ready()
    for subscription in subscriptions:
        await subscription.unsubscribe()
