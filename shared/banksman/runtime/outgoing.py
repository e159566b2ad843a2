"""Outgoing connections: the proxies of the environment, and further certificate authorities.

Clients of the messaging system and of health endpoints use neither: those servers belong to this system.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from ipaddress import IPv6Address
from pathlib import Path
from urllib.parse import unquote, urlsplit

from banksman.contracts.errors import BadInput
from banksman.contracts.urls import literal_address
from banksman.runtime.addresses import Address, is_public

_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Read by OpenSSL and the clients built on it, by requests, and by the AWS SDK."""


def proxy_for(url: str) -> str | None:
    """Return the proxy that `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY` names for a URL.

    Return None without one, for a host that `NO_PROXY` names, and for a local or private address.
    """
    # Not above: every service imports this module, and few of them connect to other systems.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    proxies, host = getproxies(), parts.hostname or ""
    address = literal_address(host)
    is_near = host == "localhost" or (address is not None and not is_public(address))
    if is_near or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def tunnel_request(proxy: str, address: Address, port: int) -> bytes:
    """Return the request with which an HTTP proxy opens a tunnel to an address."""
    where = f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    parts = urlsplit(proxy)
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}")
    return "\r\n".join((*lines, "", "")).encode()


def trust(bundle: Path) -> None:
    """Let the TLS clients that are created from now on also trust the certificates of a PEM file.

    Libraries create contexts of their own, so the certificates are passed in the variables that all of them
    read, together with the usual ones, which these variables replace. Commands do not inherit variables.

    Raises:
        BadInput: The file cannot be read, or has no certificates.
    """
    import certifi

    try:
        own = bundle.read_text()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=own)
    except (OSError, ValueError) as error:
        expectation = f"must be a file of certificates in PEM: {error}"
        raise BadInput("BANKSMAN_CA_BUNDLE", str(bundle), expectation) from error
    system: str | None = ssl.get_default_verify_paths().cafile
    texts = [Path(file).read_text() for file in (certifi.where(), system) if file]
    # A file in memory, because a container may have no writable directory. It stays open with the process.
    with os.fdopen(os.memfd_create("ca-bundle"), "w", closefd=False) as file:
        file.write("\n".join([*texts, own]))
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    os.environ.update(dict.fromkeys(_CA_VARIABLES, path))
