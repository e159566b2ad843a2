"""The calls of a runner whose acknowledgements are lost: a started call never starts again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.storage.slots import CallSlots
from banksman.contracts.calls import CallRequest
from banksman.contracts.tools import ToolResult
from banksman.runs.runners.calls import Execute, RunnerCalls
from tests.bus.builders import finished
from tests.bus.test_late_results import call_request, runner_calls
from tests.support.lossy import lossy_wire
from tests.support.nats import NatsServer
from tests.support.polling import eventually
from tests.support.timeouts import deadline


async def test_an_interrupted_call_never_starts_again_in_the_same_process(
    nats_server: NatsServer, bus: Bus, tenant: str
) -> None:
    """P2. A fault ends the execution; when the call is repeated, the acknowledgement of its start is lost."""
    executed: list[str] = []

    async def fails_after_effect(request: CallRequest) -> ToolResult:
        executed.append(request.attempt)
        raise RuntimeError("a fault after the effect")

    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        async with await Bus(settings, name="lossy").open() as lossy:
            runner, request = runner_calls(lossy), call_request(tenant)
            assert runner.admit(request)[1]
            await _perform(runner, request, fails_after_effect)
            wire.lose_next("_INBOX")
            if runner.admit(request)[1]:
                again = asyncio.create_task(_perform(runner, request, fails_after_effect))
                await wire.until_lost()
                await wire.cut()
                async with deadline("the repeated call did not end"):
                    await again
            facts = await CallSlots(bus).read(tenant, request.attempt)
    assert executed == [request.attempt]
    assert facts.started is not None and facts.finished is None


async def test_a_call_whose_start_was_not_acknowledged_runs_when_the_broker_responds(
    nats_server: NatsServer, bus: Bus, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner reads the stored start, and would wait for a result until the call's time limit."""
    executed: list[str] = []

    async def succeeds(request: CallRequest) -> ToolResult:
        executed.append(request.attempt)
        return finished(request.attempt, output="done").result

    async with lossy_wire(nats_server.port) as wire:
        settings = NatsSettings(url=wire.url, connect_timeout_s=5)
        # A client's connection waits for 7 s instead of 30.
        async with await Bus(settings, name="lossy", serves_clients=True).open() as lossy:
            runner, request = runner_calls(lossy, holds_lease=True), call_request(tenant)
            assert runner.admit(request)[1]
            wire.loses = lambda subject, _: subject.startswith("_INBOX")
            performing = asyncio.create_task(runner.perform(request, succeeds))
            await eventually(lambda: "not stored yet" in caplog.text)
            wire.loses = lambda *_: False
            async with deadline("the call did not end after the broker responded"):
                await performing
            facts = await CallSlots(bus).read(tenant, request.attempt)
    assert executed == [request.attempt]
    assert facts.started is not None and facts.finished is not None


async def _perform(runner: RunnerCalls, request: CallRequest, execute: Execute) -> None:
    with contextlib.suppress(RuntimeError):
        await runner.perform(request, execute)
