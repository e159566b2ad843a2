"""The calls of a runner whose acknowledgements are lost: a started call never starts again."""

from __future__ import annotations

import asyncio
import contextlib

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.slots import CallSlots
from banksman.contracts.calls import CallRequest
from banksman.contracts.tools import ToolResult
from banksman.runs.runner import Execute, RunnerCalls
from tests.bus.test_late_results import asked, desk
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer


async def test_an_interrupted_call_never_starts_again_in_the_same_process(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    """P2. A fault ends the execution; asked again, the first acknowledgement of its start is lost."""
    executed: list[str] = []

    async def breaks_off(request: CallRequest) -> ToolResult:
        executed.append(request.attempt)
        raise RuntimeError("a fault behind the effect")

    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus.connect(settings, name="lossy") as lossy:
            runner, request = desk(lossy), asked(tenant)
            assert runner.admit(request)[1]
            await _performed(runner, request, breaks_off)
            wire.lose_next("_INBOX")
            if runner.admit(request)[1]:
                again = asyncio.create_task(_performed(runner, request, breaks_off))
                while not wire.lost:
                    await bus.ready()
                await wire.cut()
                await again
            facts = await CallSlots(bus).read(tenant, request.attempt)
    assert executed == [request.attempt]
    assert facts.started is not None and facts.finished is None


async def _performed(runner: RunnerCalls, request: CallRequest, execute: Execute) -> None:
    with contextlib.suppress(RuntimeError):
        await runner.perform(request, execute)
