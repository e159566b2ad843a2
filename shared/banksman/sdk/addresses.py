"""The addresses of a gateway."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_local(url: str) -> bool:
    """Return whether the host of a URL is this machine, which is reached without a proxy."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def websocket_url(url: str) -> str:
    """Return the URL of the websocket of the gateway at `http(s)://…`."""
    return f"ws{url.rstrip('/').removeprefix('http')}/ws"
