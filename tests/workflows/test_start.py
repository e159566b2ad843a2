"""Workflows that start before NATS."""

from __future__ import annotations

import asyncio

from banksman.bus.connection import NatsSettings
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.workflows import app
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings
from tests.support.nats import Broker
from tests.support.polling import eventually


async def test_workflows_connect_to_nats_that_starts_later(own_nats: Broker) -> None:
    own_nats.stop()
    settings = WorkflowServiceSettings(
        nats=NatsSettings(url=own_nats.url, replicas=own_nats.replicas, connect_timeout_s=0.5),
        workflows=WorkflowSettings(drain_s=0.0),
        allow_weak_durability=True,
    )
    process = ServiceProcess(Health("workflows"))
    serving = asyncio.create_task(app.main(settings, process))

    async def problem() -> str | None:
        return (await process.health.problems()).get("nats")

    async def is_ready() -> bool:
        return not await process.health.problems()

    reason = await eventually(problem)
    first = process.health.checks["nats"]
    await eventually(lambda: process.health.checks["nats"] != first or serving.done())
    own_nats.start()
    await eventually(is_ready, failure=lambda: (serving, process.health))
    process.drain()
    await serving
    assert reason.startswith("NATS at 127.0.0.1:")
