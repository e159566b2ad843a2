"""The gateway that client commands use."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from banksman.cli.state import DataDir
from banksman.contracts.errors import BadInput

URL_VARIABLE = "BANKSMAN_GATEWAY_URL"
TOKEN_VARIABLE = "BANKSMAN_TOKEN"
DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Address:
    """URL of a gateway, and the token for it."""

    url: str
    """`http://host:port`, without a trailing slash."""
    token: str | None = field(default=None, repr=False)

    @property
    def websocket_url(self) -> str:
        """URL of the websocket."""
        return f"ws{self.url.removeprefix('http')}/ws"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def local(self) -> bool:
        """Whether the host is this machine, so that no proxy is used."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def find_gateway(url: str | None = None, data_dir: Path | None = None) -> Address:
    """Return the gateway of the argument, the environment, the running system or the default, in this order.

    Raises:
        BadInput: the URL is not an HTTP URL.
    """
    found = url or os.environ.get(URL_VARIABLE) or _running(data_dir) or DEFAULT_URL
    if urlsplit(found).scheme not in ("http", "https"):
        raise BadInput("--url" if url else URL_VARIABLE, found, "http://HOST:PORT")
    return Address(found.rstrip("/"), os.environ.get(TOKEN_VARIABLE) or None)


def _running(data_dir: Path | None) -> str | None:
    """Return the URL of the system that runs in the data directory; None if there is none."""
    directory = data_dir or Path(os.environ.get("BANKSMAN_DATA_DIR", ".banksman"))
    instance = DataDir(directory.resolve()).running()
    return instance.url if instance else None
