"""Connection settings for NATS, and counters of connection errors."""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from nats.aio.client import Server
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

Replicas = Literal[1, 3]
"""Number of servers that store each stream."""


def _number(value: object) -> object:
    # Environment variables are text, and pydantic does not convert text to a literal number.
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _server_urls(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Refuse anything but URLs of servers: nats-py takes every scheme and resolves the rest as a host."""
    urls = (value,) if isinstance(value, str) else value
    if not urls or not all(map(_is_server_url, urls)):
        raise ValueError("must be URLs such as nats://host:4222 or tls://host:4222")
    return value


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # The port is no number, or the brackets of an IPv6 address do not match.
        return False


MONITORING_PATH = "monitoring.path"
"""Name of the file with the secret path of the monitoring endpoints, which every web page may read."""


class NatsSettings(BaseModel):
    """Servers and credentials of a connection to NATS."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: Annotated[str | tuple[str, ...], AfterValidator(_server_urls)] = "nats://127.0.0.1:4222"
    """URL of one server, or of several servers of a cluster: `nats://`, `tls://`."""
    nkey_seed_file: Path | None = None
    """File with the user's nkey seed (`SU…`); None connects without a user."""
    nkey_seed: SecretStr | None = None
    """The seed itself, used instead of the file."""
    tls_ca_file: Path | None = None
    """CA certificates that verify the server; None for the system's CA certificates."""
    tls_cert_file: Path | None = None
    """Certificate of the client, if the server requires one."""
    tls_key_file: Path | None = None
    """Private key of the client certificate."""
    tls_hostname: str | None = None
    """Name in the server's certificate; None for the host name in `url`."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds within which the first connection must succeed. Reconnects are attempted without limit."""
    monitoring_url: str | None = None
    """HTTP monitoring URL of the server, which shows whether a single server syncs every write."""
    replicas: Annotated[Replicas, BeforeValidator(_number)] = 1
    """Number of servers that store each stream: 1, or 3 in a cluster. With fewer, services are not ready."""

    @property
    def monitoring(self) -> str | None:
        """`monitoring_url`, with the path that `banksman keys deployment` wrote beside the seed, if any."""
        path = self.nkey_seed_file and self.nkey_seed_file.with_name(MONITORING_PATH)
        if self.monitoring_url is None or path is None or not path.exists():
            return self.monitoring_url
        return self.monitoring_url.rstrip("/") + path.read_text(encoding="ascii")

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context that verifies the servers; None for an unencrypted connection."""
        if not self.tls_ca_file and not any(url.startswith("tls:") for url in self.urls):
            return None
        context = ssl.create_default_context(cafile=str(self.tls_ca_file) if self.tls_ca_file else None)
        if self.tls_cert_file:
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        return context

    def connect_options(self) -> dict[str, Any]:
        seed = self.nkey_seed.get_secret_value() if self.nkey_seed else None
        return {
            "servers": self.urls,
            "nkeys_seed": str(self.nkey_seed_file) if self.nkey_seed_file and not seed else None,
            "nkeys_seed_str": seed,
            "tls": self.tls_context(),
            "tls_hostname": self.tls_hostname,
            "connect_timeout": 2,
            # By default nats-py needs minutes to notice a partition and gives up after 60 reconnects.
            "ping_interval": 5,
            "max_outstanding_pings": 2,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.5,
            "reconnect_to_server_handler": _next_server,
        }


def _next_server(servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
    """Choose a random server and a delay: longer after a failed attempt, and random to spread the clients."""
    chosen = random.choice(servers)
    patience = 0.5 if chosen.reconnects else 0.05
    return chosen, patience + random.uniform(0, patience)


@dataclass(slots=True)
class BusStats:
    """Counters of a connection since it was created."""

    reconnects: int = 0
    errors: int = 0
    slow_consumer: int = 0
    """Number of times that messages were dropped because the queue of a subscription was full."""
    forbidden: int = 0
    """Publishes and subscriptions that the server refused for lack of permission."""


CLIENT_BUDGETS_S: Mapping[Replicas, float] = {1: 7.0, 3: 15.0}
"""Seconds that a request to the broker may take while a client waits, by number of servers. On one, clients
get a response within ten. On three, a request outlives an election, which begins 4 to 9 s after a kill."""
