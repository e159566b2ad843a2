"""The nats-servers of a fleet: one, or three that replicate every stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.broker.accounts import generate_keys, user_names
from banksman.cli.broker.server import Cluster, executable, render_config
from banksman.cli.broker.store import started
from banksman.cli.local.child_process import ProcessSpec
from banksman.cli.local.plan import LOCAL, LocalNats
from banksman.cli.machine import free_port
from banksman.cli.state import DataDir
from banksman.deployment import users
from banksman.deployment.streams import provision
from banksman.deployment.topology import StorageBudget, app_topology, run_topology
from banksman.deployment.users import inbox_prefix

Servers = Literal[1, 3]
"""
1  one server that syncs every write
3  a cluster; each server stores every stream and consumer
"""


@dataclass(frozen=True)
class Server:
    """One nats-server."""

    name: str
    nats: LocalNats
    config_file: Path

    @property
    def store(self) -> Path:
        """Its `store_dir`."""
        alone = self.config_file == self.nats.data.nats_config_file
        return self.nats.data.store if alone else self.nats.data.nats / f"streams-{self.name}"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command that starts it."""
        return started((executable(), "--config", str(self.config_file)), self.store)


class Broker:
    """Keys, configuration and streams of the servers."""

    def __init__(self, data: DataDir, servers: Servers, host: str) -> None:
        """Write the configurations.

        Args:
            data: The directory of all data.
            servers: The number of servers.
            host: The address of a single server; three servers listen on loopback only.
        """
        self.replicas: Servers = servers
        names = ("nats",) if servers == 1 else ("nats-1", "nats-2", "nats-3")
        self.servers = tuple(self._server(data, name, alone=servers == 1) for name in names)
        self.nats = self.servers[0].nats
        """The first server, as `banksman up` runs it."""
        self.urls = tuple(server.nats.url.replace("127.0.0.1", host) for server in self.servers)
        """The addresses for clients; each of them is enough."""
        self.nats.prepare()
        if servers == 3:
            self._make_cluster()

    def specs(self, like: ProcessSpec) -> tuple[ProcessSpec, ...]:
        """Return the processes of the servers.

        Args:
            like: The process of a single server, whose other fields apply to each of them.
        """
        return tuple(
            replace(
                like,
                name=server.name,
                command=server.command,
                ready_url=f"{server.nats.monitoring_url}/healthz",
            )
            for server in self.servers
        )

    def settings_for(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return settings with which a service uses every server; `environment` contains only one."""
        if self.replicas == 1:
            return {}
        known = [name for name in environment if name.endswith("__NKEY_SEED_FILE")]
        sections = [name.removesuffix("NKEY_SEED_FILE") for name in known]
        urls = {f"{section}URL": json.dumps(self.urls) for section in sections}
        return urls | {f"{section}REPLICAS": str(self.replicas) for section in sections}

    def with_shared_key(self, runner: ProcessSpec) -> ProcessSpec:
        """Return a tool-runner that uses the shared key: an earlier version writes no key for each runner."""
        seed = str(self.nats.seed_file(users.TOOL_RUNNER))
        environment = {**runner.environment, "BANKSMAN_NATS__NKEY_SEED_FILE": seed}
        # A runner whose id is set expects a key of its own.
        del environment["BANKSMAN_TOOL_RUNNER__RUNNER"]
        return replace(runner, environment=environment)

    async def provision(self) -> None:
        """Create or update every stream and consumer as the services expect them.

        Raises:
            Unavailable: No server responds.
            ApiError: The servers refused.
        """
        budget = StorageBudget.of_disk(self.nats.data.nats)
        topologies = (
            (users.OPERATOR, app_topology(budget, replicas=self.replicas)),
            (users.OPERATOR_FILES, run_topology(budget, replicas=self.replicas)),
        )
        for user, topology in topologies:
            async with await self.connect(user) as bus:
                await provision(bus, topology)

    async def connect(self, user: str) -> Bus:
        """Connect as one of the operator's users.

        Raises:
            Unavailable: No server responds.
        """
        settings = NatsSettings(
            url=self.urls,
            nkey_seed_file=self.nats.seed_file(user),
            connect_timeout_s=20,
            replicas=self.replicas,
        )
        return await Bus(settings, name=f"chaos-{user}", inbox_prefix=inbox_prefix(user)).open()

    def listen_everywhere(self) -> None:
        """Make the single server listen on all networks."""
        file = self.nats.data.nats_config_file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"127.0.0.1:', '"0.0.0.0:'), encoding="utf-8")

    def _server(self, data: DataDir, name: str, *, alone: bool) -> Server:
        # The configuration of an earlier version has no secret path.
        nats = LocalNats(data, port=free_port(), http_port=free_port(), http_path="")
        return Server(name, nats, nats.data.nats_config_file if alone else data.nats / f"{name}.conf")

    def _make_cluster(self) -> None:
        data = self.nats.data
        keys = generate_keys(data.keys, user_names(tenants=(LOCAL,)))
        ports = {server.name: free_port() for server in self.servers}
        routes = tuple(f"nats-route://127.0.0.1:{port}" for port in ports.values())
        for server in self.servers:
            text = render_config(
                keys,
                port=server.nats.port,
                http_port=server.nats.http_port,
                server_name=server.name,
                store_dir=str(server.store),
                budget=StorageBudget.of_disk(data.nats),
                cluster=Cluster(f"127.0.0.1:{ports[server.name]}", routes),
                tenants=(LOCAL,),
            )
            server.config_file.write_text(text, encoding="utf-8")
