"""How many connections clients may open, and which of them belong to known clients."""

from __future__ import annotations

import contextlib
import ipaddress
import resource

from starlette.types import Scope

from banksman.gateway.settings import GatewaySettings
from banksman.library_internals.uvicorn_connections import ADMITTED, AdmittedConnection, ListenerLimits
from banksman.quotas.rates import TooManyRequests

KEYLESS = ""
"""Owner of the connections to a gateway without keys, where all clients are one user."""
_MOST_CONNECTIONS = 20_000
_MOST_FILES = 65_536
_RETRY_AFTER_S = 1.0


def raise_file_limit() -> None:
    """Let this process open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    # macOS limits it by a sysctl too.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, _soft_limit()), hard))


def connection_limits(settings: GatewaySettings) -> ListenerLimits:
    """Return the limits of the gateway's port. A quarter of all files is left for everything else."""
    total = settings.max_connections or min(_soft_limit() * 3 // 4, _MOST_CONNECTIONS)
    return ListenerLimits(
        total=total,
        unknown=min(settings.max_unknown_connections or total // 4, total),
        unknown_per_address=settings.max_unknown_connections_per_address,
        header_s=settings.header_timeout_s,
        body_s=settings.body_timeout_s,
        proxies=tuple(map(ipaddress.ip_network, settings.trusted_proxies)),
    )


def know_client(scope: Scope, owner: str) -> None:
    """Note that the client of a request sent an accepted key; raise `TooManyRequests` above its share."""
    admitted: AdmittedConnection | None = scope.get("state", {}).get(ADMITTED)
    if admitted is not None and not admitted.know(owner):
        raise TooManyRequests(_RETRY_AFTER_S)


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
