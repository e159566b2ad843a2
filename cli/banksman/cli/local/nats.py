"""The nats-server of a local system: its keys, configuration and streams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from banksman.bus.connection import NatsSettings
from banksman.cli.broker.access import BrokerAccess
from banksman.cli.broker.accounts import Tenant, generate_keys, seed_file, user_names
from banksman.cli.broker.server import executable, render_config
from banksman.cli.broker.store import started
from banksman.cli.machine import bind_error, free_port
from banksman.cli.state import DataDir
from banksman.contracts.subjects import ANY
from banksman.deployment import users
from banksman.deployment.streams import provision
from banksman.deployment.topology import StorageBudget

LOCAL = Tenant("local", tool_servers=(ANY,))
"""The tenant of requests to a gateway without API keys. Services on this machine may serve tools to it."""
_CONNECT_TIMEOUT_S = 10


def port_for_clients(data: DataDir) -> int:
    """Return the port of the last start if it is free, so that services outside the system reconnect."""
    try:
        last = int(_port_file(data).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = None
    if last is None or bind_error("127.0.0.1", last, reuse=True) is not None:
        return free_port()
    return last


def _port_file(data: DataDir) -> Path:
    return data.nats / "port"


@dataclass(frozen=True, slots=True)
class LocalNats:
    data: DataDir
    port: int
    http_port: int
    runners: tuple[str, ...] = ()
    """Ids of the tool-runners with their own keys; empty for one key shared by runners outside the system."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def config_file(self) -> Path:
        return self.data.nats / "nats.conf"

    @property
    def store(self) -> Path:
        return self.data.store

    @property
    def command(self) -> tuple[str, ...]:
        return started((executable(), "--config", str(self.config_file)), self.store)

    def prepare(self) -> None:
        keys = generate_keys(self.data.keys, user_names(runners=self.runners, tenants=(LOCAL,)))
        text = render_config(
            keys,
            port=self.port,
            http_port=self.http_port,
            store_dir=str(self.store),
            budget=StorageBudget.of_disk(self.data.nats),
            runners=self.runners,
            tenants=(LOCAL,),
        )
        self.config_file.write_text(text, encoding="utf-8")
        _port_file(self.data).write_text(str(self.port), encoding="utf-8")
        context = {
            "description": "Services of tenant local, outside `banksman up`",
            "url": self.url,
            "nkey": str(self.seed_file(LOCAL.user)),
        }
        self.data.nats_context_file.write_text(json.dumps(context, indent=2), encoding="utf-8")

    def seed_file(self, user: str) -> Path:
        return seed_file(self.data.keys, user)

    async def provision(self) -> None:
        settings = NatsSettings(
            url=self.url,
            nkey_seed_file=self.seed_file(users.OPERATOR),
            monitoring_url=self.monitoring_url,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        budget = StorageBudget.of_disk(self.data.nats)
        await BrokerAccess(settings, self.seed_file(users.OPERATOR_FILES), budget).in_each(provision)
