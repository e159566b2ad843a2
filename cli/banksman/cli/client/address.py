from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from banksman.cli.local.state import DataDir
from banksman.contracts.errors import BadInput

URL_VARIABLE = "BANKSMAN_GATEWAY_URL"
TOKEN_VARIABLE = "BANKSMAN_TOKEN"  # the name of a variable
DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Address:
    """A gateway, and what opens it."""

    url: str
    """`http://host:port`, without a slash at its end."""
    token: str | None = field(default=None, repr=False)

    @property
    def websocket_url(self) -> str:
        """Where the websocket is."""
        return f"ws{self.url.removeprefix('http')}/ws"

    @property
    def headers(self) -> dict[str, str]:
        """What goes with every request."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def local(self) -> bool:
        """Whether it is this machine: no proxy stands between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def find_gateway(url: str | None = None, data_dir: Path | None = None) -> Address:
    """The gateway to talk to: the one named, else the one that runs here, else the usual address.

    Raises:
        BadInput: the address is none of HTTP.
    """
    found = url or os.environ.get(URL_VARIABLE) or _running(data_dir) or DEFAULT_URL
    if urlsplit(found).scheme not in ("http", "https"):
        raise BadInput("--url" if url else URL_VARIABLE, found, "http://HOST:PORT")
    return Address(found.rstrip("/"), os.environ.get(TOKEN_VARIABLE) or None)


def _running(data_dir: Path | None) -> str | None:
    """The address of the system that runs here."""
    directory = data_dir or Path(os.environ.get("BANKSMAN_DATA_DIR", ".banksman"))
    instance = DataDir(directory.resolve()).running()
    return instance.url if instance else None
