"""Connecting a client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from banksman.bus.connection import Bus, NatsSettings
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import check_token
from banksman.sdk.client import Client
from banksman.sdk.nats_transport import NatsTransport


@asynccontextmanager
async def connect(
    url: str | tuple[str, ...],
    tenant: str | None = None,
    *,
    token: str | None = None,
    nkey_seed_file: Path | None = None,
    tls_ca_file: Path | None = None,
    name: str = "banksman-client",
    connect_timeout_s: float = 30.0,
    reconnect_s: tuple[float, float] = (0.5, 30.0),
) -> AsyncGenerator[Client]:
    """Connect a client for the duration of the context.

    Args:
        url: The address of a gateway, `http(s)://…`, or of a NATS server, or the addresses of a cluster.
        tenant: The tenant, only for NATS; the user of the seed must belong to its account. A gateway knows
            the tenant of the token.
        token: The API key for a gateway; None for a gateway without keys.
        nkey_seed_file: File with the user's seed, for NATS; None connects without a user.
        tls_ca_file: CA certificates to verify a NATS server; None uses the system's.
        name: Name of the connection in logs.
        connect_timeout_s: Timeout of the first connection in seconds.
        reconnect_s: Minimum and maximum seconds between two connections to a gateway.

    Raises:
        BadInput: The tenant is not a valid token.
        ConnectionEnded: The gateway refused the token.
        Unavailable: No gateway, or no server, accepted the client in time.
    """
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        # Services use the SDK over NATS alone.
        from banksman.sdk.web_transport import WebTransport

        async with WebTransport.connected(url, token, name, reconnect_s, connect_timeout_s) as transport:
            yield Client(transport)
        return
    if tenant is None:
        raise BadInput("tenant", None, "the name of a tenant, which NATS needs")
    check_token(tenant, "tenant")
    settings = NatsSettings(
        url=url, nkey_seed_file=nkey_seed_file, tls_ca_file=tls_ca_file, connect_timeout_s=connect_timeout_s
    )
    async with await Bus.connect(settings, name=name) as bus:
        yield Client(NatsTransport(bus, tenant))
