from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.runtime.health import Health
from banksman.runtime.service import ServiceProcess
from banksman.workflows import app
from banksman.workflows.settings import WorkflowServiceSettings, WorkflowSettings
from tests.support.fixtures import connect, provision_all
from tests.support.nats import Broker, broker
from tests.support.polling import eventually
from tests.workflows.playing import PlayedRunner


@pytest.fixture(scope="module")
def server() -> Generator[Broker]:
    """Run a server for one module: its runners and its registry are shared with no other."""
    with broker() as server:
        provision_all(server)
        yield server


@pytest.fixture
async def link(server: Broker) -> AsyncGenerator[Bus]:
    async with await connect(server) as bus:
        yield bus


@pytest.fixture
async def runner(server: Broker) -> AsyncGenerator[PlayedRunner]:
    async with await connect(server, name="runner") as bus, PlayedRunner(bus).serving() as runner:
        yield runner


@pytest.fixture
async def service(server: Broker) -> AsyncGenerator[ServiceProcess]:
    """The workflows service, composed as in production, in this process."""
    settings = WorkflowServiceSettings(
        nats=NatsSettings(url=server.url, replicas=server.replicas),
        workflows=WorkflowSettings(drain_s=0.0),
        allow_weak_durability=True,  # the tests' servers do not sync each write
    )
    process = ServiceProcess(Health("workflows"))
    serving = asyncio.create_task(app.main(settings, process))
    await eventually(lambda: process.health.started or serving.done())
    assert not serving.done(), serving.exception()
    yield process
    process.drain()
    await serving
