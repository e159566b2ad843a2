"""The configuration file of one nats-server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from banksman.cli.broker.accounts import MAX_PAYLOAD_BYTES, PublicKeys, Tenant, accounts
from banksman.cli.broker.conf import render
from banksman.deployment.topology import StorageBudget
from banksman.deployment.users import SYS, all_users

CLUSTER_SIZE = 3
"""Number of servers of a cluster; each keeps every stream."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of the server's certificate files."""

    cert_file: str
    key_file: str
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster settings of one of three servers."""

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
    server_name: str = "nats",
    store_dir: str,
    budget: StorageBudget,
    sync_always: bool = True,
    tls: Tls | None = None,
    cluster: Cluster | None = None,
    runners: tuple[str, ...] = (),
    tenants: tuple[Tenant, ...] = (),
    tool_servers: tuple[str, ...] = (),
    relays: bool = True,
) -> str:
    """Render the configuration file of one server.

    Args:
        keys: Public keys of all users, including those of runners and tenants.
        port: Port for clients.
        http_port: Port of the monitoring endpoints, which must not be public; None disables them.
        host: Interface for clients.
        http_host: Interface of the monitoring endpoints.
        server_name: Name that is unique in a cluster.
        store_dir: Directory of the streams.
        budget: Bytes for all streams together.
        sync_always: Whether every write is synced to disk before it is acknowledged. Without it, a single
            server loses acknowledged messages in a power cut.
        tls: The server's certificate; None for a network without other users.
        cluster: Cluster settings; None for a single server.
        runners: Ids of the runners with their own keys; empty for one shared key.
        tenants: Tenants with their own accounts.
        tool_servers: Ids of the tool servers that serve all tenants.
        relays: Whether agents store what runners and tool servers publish. False lets runners and tool
            servers write to the streams, during an upgrade from a version whose agents have no relay.
    """
    config: dict[str, Any] = {
        "server_name": server_name,
        "listen": f"{host}:{port}",
        "max_payload": MAX_PAYLOAD_BYTES,
        "ping_interval": "5s",
        "ping_max": 2,
        "write_deadline": "5s",
        "jetstream": _jetstream(store_dir, budget, sync_always=sync_always),
        "accounts": accounts(
            keys,
            # The server charges each replica of a stream to the account.
            budget if cluster is None else StorageBudget(budget.total_bytes * CLUSTER_SIZE),
            all_users(runners, tool_servers),
            tenants,
            tool_servers,
            relays=relays,
        ),
        "system_account": SYS,
    }
    if http_port is not None:
        config["http"] = f"{http_host}:{http_port}"
    if tls is not None:
        config["tls"] = _tls(tls)
    if cluster is not None:
        config["cluster"] = _cluster(cluster)
    return render(config)


def _cluster(cluster: Cluster) -> dict[str, Any]:
    config: dict[str, Any] = {
        "name": cluster.name,
        "listen": cluster.listen,
        "routes": list(cluster.routes),
    }
    # Without `verify`, any process that reaches the port could join and read every account.
    return config if cluster.tls is None else {**config, "tls": {**_tls(cluster.tls), "verify": True}}


def _jetstream(store_dir: str, budget: StorageBudget, *, sync_always: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"store_dir": store_dir, "max_file_store": budget.total_bytes}
    return {**settings, "sync_interval": "always"} if sync_always else settings


def _tls(tls: Tls) -> dict[str, Any]:
    # The default handshake timeout of two seconds is too short on a busy machine.
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "timeout": 10}
    return {**files, "ca_file": tls.ca_file} if tls.ca_file else files
