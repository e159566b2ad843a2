"""Access to private servers that the operator has allowed."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from ipaddress import ip_address

import httpcore
import httpx

from banksman.runtime.addresses import Address
from banksman.tool_runner.egress.client import Egress, Fetched
from banksman.tool_runner.egress.hosts import ANY_HOST, HostRules
from banksman.tool_runner.limits import FetchLimits


class EgressWithPrivate(Egress):
    """The client for public addresses, and one client for each allowed private server."""

    def __init__(
        self,
        limits: FetchLimits,
        *,
        hosts: HostRules,
        private: Iterable[str],
        ssl_context: ssl.SSLContext,
    ) -> None:
        super().__init__(limits, hosts=hosts, ssl_context=ssl_context)
        self._private = {
            server: _client_for(*server, limits, ssl_context) for server in (_parse(text) for text in private)
        }

    async def get(self, url: str, *, timeout_s: float | None = None, within: HostRules = ANY_HOST) -> Fetched:
        """GET a URL; see `Egress.get`.

        Only the first hop may be a private server: a public page cannot redirect to one.
        """
        client = self._private.get(_host_and_port(url))
        if client is not None:
            return await client.get(url, timeout_s=timeout_s, within=within)
        return await super().get(url, timeout_s=timeout_s, within=within)

    async def connect(self, url: httpx.URL, *, within: HostRules) -> httpcore.AsyncNetworkStream:
        """Connect to the host of a URL; see `Egress.connect`."""
        client = self._private.get(_host_and_port(str(url)))
        if client is not None:
            return await client.connect(url, within=within)
        return await super().connect(url, within=within)

    def trusts(self, url: str) -> bool:
        """Return whether a URL is that of an allowed private server."""
        return _host_and_port(url) in self._private


def _client_for(address: str, port: int, limits: FetchLimits, ssl_context: ssl.SSLContext) -> Egress:
    def is_allowed(found: Address) -> bool:
        return found == ip_address(address)

    return Egress(
        limits,
        hosts=HostRules(allowed=(address,)),
        ports=frozenset({port}),
        address_allowed=is_allowed,
        ssl_context=ssl_context,
    )


def _parse(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return str(ip_address(host.strip("[]"))), int(port)


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
        return "", 0
    return parsed.host, parsed.port or (443 if parsed.scheme == "https" else 80)
