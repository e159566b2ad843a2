"""A request to a process whose lease ends is not waited for."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.bus.test_late_results import call_request

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import instance_key
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.ids import new_id
from banksman.runs.ports import Placement
from banksman.runs.runners.placement import CALL_TIMEOUT_S, Placements


@pytest.mark.parametrize("of_server", [False, True], ids=["runner", "tool server"])
async def test_the_wait_for_the_reply_to_a_call_ends_with_the_lease(
    bus: Bus, tenant: str, of_server: bool
) -> None:
    """The next process of a tool server receives the request, and does not reply for the former one."""
    process, received = new_id("p"), asyncio.Event()

    async def silent(_message: object) -> None:
        received.set()

    await bus.subscribe(subjects.tool_call(process, subjects.ANY, subjects.ANY), silent)
    leases = Bucket(bus, RUNNERS, RunnerLease)
    key = instance_key(process, 1, None) if of_server else process
    await leases.put(key, RunnerLease(runner=process, runner_epoch=1))
    async with BrokerClock(bus) as clock, Placements(bus, clock) as placements:
        sent = placements.call(Placement(process, 1), call_request(tenant))
        calling = asyncio.create_task(sent)
        await received.wait()
        began = time.monotonic()
        await leases.delete(key)
        assert await calling is None
        assert time.monotonic() - began < CALL_TIMEOUT_S / 2
