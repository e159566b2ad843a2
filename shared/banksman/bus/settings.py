"""How to reach NATS, and what is counted of a connection's troubles."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

Replicas = Literal[1, 3]
"""Servers that keep each stream."""


def _number(value: object) -> object:
    # The environment has only text, and a literal number takes none.
    return int(value) if isinstance(value, str) and value.isdigit() else value


class NatsSettings(BaseModel):
    """How to reach NATS and as whom."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str | tuple[str, ...] = "nats://127.0.0.1:4222"
    """One server or several of a cluster: `nats://`, `tls://`."""
    nkey_seed_file: Path | None = None
    """File with the user's seed (`SU…`); None connects without a user."""
    nkey_seed: SecretStr | None = None
    """The seed itself, when there is no file."""
    tls_ca_file: Path | None = None
    """Certificates that the server's is checked against; None for the system's."""
    tls_cert_file: Path | None = None
    """The client's own certificate, where the server asks for one."""
    tls_key_file: Path | None = None
    tls_hostname: str | None = None
    """The name in the server's certificate, when it is not the one in `url`."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds until the first connection must stand; later ones are tried for ever."""
    monitoring_url: str | None = None
    """Where the server tells of itself over HTTP. A single server must be seen to sync every write."""
    replicas: Annotated[Replicas, BeforeValidator(_number)] = 1
    """Servers that keep each stream: 1, or 3 in a cluster. With fewer copies services are not ready."""

    @property
    def urls(self) -> list[str]:
        """All servers."""
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def tls_context(self) -> ssl.SSLContext | None:
        """How servers are checked; None when the connection is not encrypted."""
        if not self.tls_ca_file and not any(url.startswith("tls:") for url in self.urls):
            return None
        context = ssl.create_default_context(cafile=str(self.tls_ca_file) if self.tls_ca_file else None)
        if self.tls_cert_file:
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        return context


@dataclass(slots=True)
class BusStats:
    """What went wrong on a connection since it was made."""

    reconnects: int = 0
    errors: int = 0
    slow_consumer: int = 0
    """Times that messages were dropped because a subscription's queue was full."""
    forbidden: int = 0
    """Publishes and subscriptions that the server refused."""
