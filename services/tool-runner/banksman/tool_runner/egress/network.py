"""What the runner may connect to: rules for hosts, checks of URLs, and connections to checked addresses."""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, cast

import httpcore
import httpx

from banksman.contracts.tools import NetworkPolicy, split_pattern
from banksman.runtime.addresses import Address

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Resolves host and port to addresses as text."""

AddressPolicy = Callable[[Address], bool]

HttpErrors = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
"""Errors of a connection or of the server's HTTP."""

_LOOK_UPS = ThreadPoolExecutor(32, thread_name_prefix="look-up")
"""Separate threads for DNS look-ups, which may hang as long as the DNS server does and cannot be cancelled.

In the default executor, such look-ups would take the threads of files and of the connection to NATS.
"""
PORTS = frozenset({80, 443, 8080, 8443})
_MAX_HOST_CHARS = 253
"""Maximum characters of a DNS name (RFC 1035); a longer host is refused before it is decoded or compared."""
_LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa", "lan", "intranet")
# getaddrinfo also accepts 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 as 127.0.0.1 (inet_aton(3)).
_NUMERIC_HOST = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#\\]")
_DOTTED_QUAD = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")


class PinnedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that it resolved and checked itself.

    A client that checks a name and resolves it again to connect can get another address (DNS rebinding).
    """

    def __init__(self, resolver: Resolver, address_allowed: AddressPolicy) -> None:
        self._resolver = resolver
        self._address_allowed = address_allowed
        self._backend = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve once, refuse if any address is not allowed, then try the addresses in their order."""
        addresses = await self._addresses(host, port)
        failure: Exception | None = None
        for address in addresses:
            try:
                stream = await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            await self._verify_peer(stream, address)
            return TcpStream(stream)
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def _addresses(self, host: str, port: int) -> list[Address]:
        literal = literal_address(host)
        resolved = [str(literal)] if literal else await self._resolver(host, port)
        # The part after % is an IPv6 zone id.
        addresses = [ip_address(each.partition("%")[0]) for each in resolved]
        # One private address is enough to refuse: which address a client connects to depends on failures.
        for address in addresses:
            if not self._address_allowed(address):
                raise FetchRefused(f"{host} is at {address}, which is not a public address")
        return addresses

    async def _verify_peer(self, stream: httpcore.AsyncNetworkStream, address: Address) -> None:
        # Defence in depth: the connected peer must be the checked address.
        peer = cast(tuple[str, int] | None, stream.get_extra_info("server_addr"))
        if peer is None or ip_address(peer[0].partition("%")[0]) != address:
            await stream.aclose()
            raise FetchRefused(f"connected to {peer!r} instead of {address}")


async def resolve(host: str, port: int) -> list[str]:
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class TcpStream(httpcore.AsyncNetworkStream):
    """A TCP connection that is closed if its TLS handshake is cancelled.

    httpcore closes it only after an error. A server that never finishes the handshake would otherwise hold a
    socket of the runner after each fetch: the event loop refers to it until the server closes it.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the signature is httpcore's
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the signature is httpcore's
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class FetchRefused(Exception):
    pass


def check_url(url: str, ports: frozenset[int] = PORTS) -> httpx.URL:
    """Parse a URL and check it without a DNS look-up; raise `FetchRefused` if it is not allowed."""
    try:
        parsed = httpx.URL(url)
        url.encode("utf-8")
        if len(parsed.raw_host) > _MAX_HOST_CHARS:
            raise FetchRefused(f"the host has more than {_MAX_HOST_CHARS} characters")
        # Decodes an internationalised name, and raises if its punycode is broken.
        host = parsed.host
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError) as error:
        raise FetchRefused(f"not a URL: {error}") from error
    if parsed.scheme not in ("http", "https"):
        raise FetchRefused(f"scheme {parsed.scheme!r}: only http and https are allowed")
    # "user@host" can disguise the host. The text is checked because an empty user disappears in parsing.
    if "@" in _AUTHORITY_END.split(url.partition("://")[2], maxsplit=1)[0]:
        raise FetchRefused("a user name or password in the URL is not allowed")
    port = port_of(parsed)
    if port not in ports:
        raise FetchRefused(f"port {port} is not allowed; allowed are {', '.join(map(str, sorted(ports)))}")
    _check_host(host)
    return parsed


def port_of(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _check_host(host: str) -> None:
    name = host.rstrip(".").lower()
    if not name or "%" in name:
        raise FetchRefused(f"host {host!r} is not allowed")
    if _NUMERIC_HOST.fullmatch(name) and not (_DOTTED_QUAD.fullmatch(name) and literal_address(name)):
        raise FetchRefused(f"host {host!r}: write an IPv4 address as four decimal numbers")
    if name.rpartition(".")[2] in _LOCAL_NAMES or any(name.endswith(f".{local}") for local in _LOCAL_NAMES):
        raise FetchRefused(f"host {host!r} is a local name")


def literal_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]").rstrip("."))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class HostRules:
    """Allowed and denied hosts as patterns of `contracts.network`; checked for every redirect too."""

    allowed: tuple[str, ...] = ("*",)
    denied: tuple[str, ...] = ()

    def admit(self, host: str, port: int) -> bool:
        """Return whether a pattern allows the host and no pattern denies it.

        `host` is an ASCII name in lower case without a trailing dot, or an address without brackets.
        """
        return _match(host, port, self.allowed) and not _match(host, port, self.denied)


ANY_HOST = HostRules()


def rules_of(policy: NetworkPolicy | None) -> HostRules:
    return ANY_HOST if policy is None else HostRules(policy.allow_hosts, policy.deny_hosts)


def _match(host: str, port: int, patterns: Iterable[str]) -> bool:
    return any(
        only_port in (None, port) and fnmatch.fnmatchcase(host, glob)
        for glob, only_port in map(split_pattern, patterns)
    )
