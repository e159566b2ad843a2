"""Fixtures with a real nats-server. `tests/conftest.py` loads them for every test.

Tests share one server and each has a tenant of its own; a test that kills its server asks for `own_nats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.streams import provision
from banksman.bus.topology import StorageBudget, app_topology, run_topology
from banksman.contracts.ids import new_id
from banksman.testing.nats import NatsServer

BUDGET = StorageBudget(10 * 1024**3)


async def connect(server: NatsServer, *, name: str = "test") -> Bus:
    """A connection to a server without accounts."""
    settings = NatsSettings(url=server.url, monitoring_url=server.monitoring_url, connect_timeout_s=10)
    return await Bus.connect(settings, name=name)


def provision_all(server: NatsServer) -> None:
    """Create everything that APP and RUN hold, in the one account of a server without accounts."""

    async def create() -> None:
        async with await connect(server, name="provision") as bus:
            await provision(bus, app_topology(BUDGET))
            await provision(bus, run_topology(BUDGET))

    asyncio.run(create())


@pytest.fixture(scope="session")
def nats_server() -> Generator[NatsServer]:
    """A server with every stream, shared by all tests of a session. Never kill it."""
    with NatsServer() as server:
        provision_all(server)
        yield server


@pytest.fixture
def own_nats() -> Generator[NatsServer]:
    """A server with every stream for one test, which may kill and restart it."""
    with NatsServer() as server:
        provision_all(server)
        yield server


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncGenerator[Bus]:
    """A connection to the shared server."""
    async with await connect(nats_server) as connected:
        yield connected


@pytest.fixture
async def own_bus(own_nats: NatsServer) -> AsyncGenerator[Bus]:
    """A connection to the test's own server."""
    async with await connect(own_nats) as connected:
        yield connected


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test uses."""
    return new_id("t")


@pytest.fixture
def conversation() -> str:
    """A conversation that no other test uses."""
    return new_id("c")
