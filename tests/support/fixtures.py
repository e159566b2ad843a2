"""Fixtures with a real nats-server. `tests/conftest.py` loads them for every test.

Tests share one server, and each test has its own tenant. A test that kills its server uses `own_nats`.
With `BANKSMAN_TEST_SERVERS=3` the server is a cluster of three that replicates every stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.broker.accounts import Tenant, generate_keys, seed_file, user_names
from banksman.cli.broker.server import Cluster, render_config
from banksman.contracts.ids import new_id
from banksman.deployment.streams import provision
from banksman.deployment.topology import StorageBudget, app_topology, run_topology
from banksman.deployment.users import OPERATOR, OPERATOR_FILES, inbox_prefix
from tests.support.nats import Broker, NatsServer, broker

BUDGET = StorageBudget(10 * 1024**3)


def settings_of(server: Broker) -> NatsSettings:
    """Return the settings to connect to a server without accounts."""
    return NatsSettings(
        url=server.url,
        monitoring_url=server.monitoring_url,
        replicas=server.replicas,
        connect_timeout_s=10,
    )


async def connect(server: Broker, *, name: str = "test") -> Bus:
    """Connect to a server without accounts."""
    return await Bus(settings_of(server), name=name).open()


def provision_all(server: Broker) -> None:
    """Create everything of APP and RUN, in the single account of a server without accounts."""

    async def create() -> None:
        async with await connect(server, name="provision") as bus:
            await provision(bus, app_topology(BUDGET, replicas=server.replicas))
            await provision(bus, run_topology(BUDGET, replicas=server.replicas))

    asyncio.run(create())


@pytest.fixture(scope="session")
def nats_server() -> Generator[Broker]:
    """A server with every stream, shared by all tests of a session. Tests must not kill it."""
    with broker() as server:
        provision_all(server)
        yield server


@pytest.fixture
def own_nats() -> Generator[Broker]:
    """A server with every stream for one test, which may kill and restart it."""
    with broker() as server:
        provision_all(server)
        yield server


@pytest.fixture
async def bus(nats_server: Broker) -> AsyncGenerator[Bus]:
    """A connection to the shared server."""
    async with await connect(nats_server) as connected:
        yield connected


@pytest.fixture
async def own_bus(own_nats: Broker) -> AsyncGenerator[Bus]:
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
    """A server with the accounts, users and permissions of a deployment."""

    def __init__(self, server: Broker, keys: Path) -> None:
        self.server = server
        self._keys = keys

    def seed_file(self, user: str) -> Path:
        """Return the file that holds a user's seed."""
        return seed_file(self._keys, user)

    async def connect(self, user: str) -> Bus:
        """Connect as one of its users."""
        settings = settings_of(self.server).model_copy(update={"nkey_seed_file": self.seed_file(user)})
        return await Bus(settings, name=user, inbox_prefix=inbox_prefix(user)).open()


ACME = Tenant("acme", tool_servers=("weather",))


@contextmanager
def secured_server(
    keys: Path,
    *,
    runners: tuple[str, ...] = (),
    tenants: tuple[Tenant, ...] = (),
    tool_servers: tuple[str, ...] = (),
    changed: Callable[[str], str] = str,
) -> Generator[SecuredNats]:
    """Run a provisioned server with accounts and user seeds in `keys`; runners share a key unless named.

    `changed` returns the configuration that the server gets in place of the rendered one.
    """
    everybody = user_names(runners=runners, tenants=tenants, tool_servers=tool_servers)
    public = generate_keys(keys, everybody)

    def render(node: NatsServer, place: Cluster | None) -> str:
        return changed(
            render_config(
                public,
                port=node.port,
                http_port=node.http_port,
                server_name=node.name,
                store_dir=str(node.directory / "store"),
                budget=BUDGET,
                sync_always=False,
                cluster=place,
                runners=runners,
                tenants=tenants,
                tool_servers=tool_servers,
            )
        )

    with broker(render) as server:
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
        await provision(operator, app_topology(BUDGET, replicas=secured.server.replicas))
    async with await secured.connect(OPERATOR_FILES) as operator:
        await provision(operator, run_topology(BUDGET, replicas=secured.server.replicas))
