"""Fixtures with a real nats-server. `tests/conftest.py` loads them for every test.

Tests share one server and each has a tenant of its own; a test that kills its server asks for `own_nats`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from banksman.bus.accounts import Tenant, render_config, user_names
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.keys import generate_keys, seed_file
from banksman.bus.streams import provision
from banksman.bus.topology import StorageBudget, app_topology, run_topology
from banksman.bus.users import OPERATOR, OPERATOR_FILES, inbox_prefix
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


class SecuredNats:
    """A server with the accounts, users and rights of a deployment."""

    def __init__(self, server: NatsServer, keys: Path) -> None:
        self.server = server
        self._keys = keys

    def seed_file(self, user: str) -> Path:
        """The file with a user's seed."""
        return seed_file(self._keys, user)

    async def connect(self, user: str) -> Bus:
        """A connection as one of its users."""
        settings = NatsSettings(
            url=self.server.url, nkey_seed_file=self.seed_file(user), connect_timeout_s=10
        )
        return await Bus.connect(settings, name=user, inbox_prefix=inbox_prefix(user))


ACME = Tenant("acme", tool_servers=("weather",))


@contextmanager
def secured_server(
    keys: Path, *, runners: tuple[str, ...] = (), tenants: tuple[Tenant, ...] = ()
) -> Generator[SecuredNats]:
    """A provisioned server with accounts, its users' seeds in `keys`; runners share one key unless named."""
    public = generate_keys(keys, user_names(runners=runners, tenants=tenants))
    server = NatsServer()
    server.config = render_config(
        public,
        port=server.port,
        http_port=server.http_port,
        store_dir=str(server.directory / "store"),
        budget=BUDGET,
        sync_always=False,
        runners=runners,
        tenants=tenants,
    )
    with server:
        secured = SecuredNats(server, keys)
        asyncio.run(_provision_accounts(secured))
        yield secured


@pytest.fixture(scope="session")
def secured_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[SecuredNats]:
    """A server with accounts, shared by all tests: two runners `r1` and `r2`, and the tenant `acme`."""
    with secured_server(tmp_path_factory.mktemp("keys"), runners=("r1", "r2"), tenants=(ACME,)) as secured:
        yield secured


async def _provision_accounts(secured: SecuredNats) -> None:
    async with await secured.connect(OPERATOR) as operator:
        await provision(operator, app_topology(BUDGET))
    async with await secured.connect(OPERATOR_FILES) as operator:
        await provision(operator, run_topology(BUDGET))
