"""The only HTTP client of the runner. It connects to checked addresses only.

FetchRefused      the policy forbids the URL, an address or a redirect
FetchFailed       the fetch was allowed and failed: look-up, connection, protocol or deadline
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import cast

import httpcore
import httpx

from banksman.runtime.addresses import Address, is_public
from banksman.tool_runner.egress.hosts import ANY_HOST, HostRules
from banksman.tool_runner.egress.inflate import Inflater, UnsupportedEncoding
from banksman.tool_runner.egress.streams import Connection
from banksman.tool_runner.limits import FetchLimits

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Resolves host and port to addresses as text."""

AddressPolicy = Callable[[Address], bool]

_LOOK_UPS = ThreadPoolExecutor(32, thread_name_prefix="look-up")
"""Threads of their own: a look-up may hang for as long as its server likes, and cannot be stopped.

In the default executor, such look-ups would take the threads of files and of the connection to NATS.
"""
_PORTS = frozenset({80, 443, 8080, 8443})
_MAX_URL_CHARS = 8000
"""A longer target of a redirect is refused before it is parsed."""
_MAX_HOST_CHARS = 253
"""Length of a DNS name (RFC 1035); a longer one is refused before it is decoded or compared with patterns."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOCAL_NAMES = ("localhost", "local", "internal", "localdomain", "home.arpa", "lan", "intranet")
# getaddrinfo also accepts 2130706433, 0x7f000001, 0177.0.0.1 and 127.1 as 127.0.0.1 (inet_aton(3)).
_NUMERIC_HOST = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#\\]")
_DOTTED_QUAD = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_HEADERS = (
    (b"User-Agent", b"banksman"),
    (b"Accept", b"text/*, application/json, application/xml;q=0.9, */*;q=0.1"),
    (b"Accept-Encoding", b"gzip, deflate"),
    # A reused connection would bypass the address check of the next fetch.
    (b"Connection", b"close"),
)


class FetchRefused(Exception):
    """The policy forbids the URL, one of its addresses, or a redirect."""


class FetchFailed(Exception):
    """The fetch was allowed and failed."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response."""

    url: str
    """The URL after all redirects."""
    status: int
    content_type: str
    body: bytes
    truncated: bool
    """True if the body exceeded a limit; then `body` is its beginning."""


class Egress:
    """Fetches URLs within rules for hosts, ports and addresses."""

    def __init__(
        self,
        limits: FetchLimits,
        *,
        hosts: HostRules | None = None,
        ports: frozenset[int] = _PORTS,
        resolver: Resolver | None = None,
        address_allowed: AddressPolicy = is_public,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Create a client with one TLS context: creating a context takes far longer than a connection."""
        self._limits = limits
        self._hosts = hosts or HostRules()
        self._ports = ports
        self._network = PinnedNetwork(resolver or resolve, address_allowed)
        self.ssl_context = ssl_context or ssl.create_default_context()
        """Verifies the servers of TLS connections."""

    async def get(self, url: str, *, timeout_s: float | None = None, within: HostRules = ANY_HOST) -> Fetched:
        """GET a URL and follow redirects. Each hop is checked like the first.

        Args:
            url: The first URL.
            timeout_s: Seconds for all hops together; None for the limit's default, which is also the maximum.
            within: Further rules for this fetch; they narrow the client's rules.

        Raises:
            FetchRefused: the policy forbids a hop.
            FetchFailed: a hop failed, or the deadline has passed.
        """
        deadline_s = min(timeout_s or self._limits.timeout_s, self._limits.timeout_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._follow(url, within)
        except TimeoutError as error:
            raise FetchFailed(f"no complete response within {deadline_s:g} s", timed_out=True) from error

    async def connect(self, url: httpx.URL, *, within: HostRules) -> httpcore.AsyncNetworkStream:
        """Connect to the host and port of a URL under the rules of a fetch; the caller closes the stream.

        Raises:
            FetchRefused: the policy forbids the host, the port or an address.
            FetchFailed: the connection failed or took longer than the limit.
        """
        checked = self._checked(str(url), within)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._network.connect_tcp(checked.raw_host.decode("ascii"), _port(checked))
        except TimeoutError as error:
            raise FetchFailed("the connection timed out", timed_out=True) from error
        except (httpcore.NetworkError, httpcore.TimeoutException, OSError, ValueError) as error:
            raise FetchFailed(_described(error)) from error

    async def _follow(self, url: str, within: HostRules) -> Fetched:
        current = self._checked(url, within)
        for _ in range(self._limits.max_redirects + 1):
            result = await self._hop(current)
            if isinstance(result, Fetched):
                return result
            current = self._checked(str(result), within)
        raise FetchRefused(f"more than {self._limits.max_redirects} redirects")

    def _checked(self, url: str, within: HostRules) -> httpx.URL:
        parsed = check_url(url, self._ports)
        name = parsed.raw_host.decode("ascii").strip("[]").rstrip(".").lower()
        if not self._hosts.admit(name, _port(parsed)):
            raise FetchRefused(f"host {name!r} is not allowed on this runner")
        if not within.admit(name, _port(parsed)):
            raise FetchRefused(f"host {name!r} is not allowed for this assistant")
        return parsed

    async def _hop(self, url: httpx.URL) -> Fetched | httpx.URL:
        """Send one request; return the response, or the URL that it redirects to."""
        async with httpcore.AsyncConnectionPool(
            ssl_context=self.ssl_context, network_backend=self._network, max_keepalive_connections=0
        ) as pool:
            try:
                async with pool.stream("GET", _wire_url(url), headers=_headers(url)) as response:
                    location = _header(response, b"location")
                    if response.status in _REDIRECTS and location:
                        if len(location) > _MAX_URL_CHARS:
                            raise FetchRefused(f"the redirect has more than {_MAX_URL_CHARS} characters")
                        return url.join(location)
                    return await self._read(url, response)
            except httpx.InvalidURL as error:
                raise FetchRefused(f"the redirect is not a URL: {error}") from error
            except (
                httpcore.NetworkError,
                httpcore.ProtocolError,
                httpcore.TimeoutException,
                OSError,
                ValueError,
            ) as error:
                raise FetchFailed(_described(error)) from error

    async def _read(self, url: httpx.URL, response: httpcore.Response) -> Fetched:
        content_type = _header(response, b"content-type")
        try:
            inflater = Inflater(_header(response, b"content-encoding"), self._limits.max_body_bytes)
        except UnsupportedEncoding as error:
            raise FetchFailed(str(error)) from error
        received = 0
        async for chunk in response.aiter_stream():
            room = self._limits.max_received_bytes - received
            received += len(chunk)
            # Raw bytes are inflated here with a limit; the library would inflate a whole chunk at once.
            inflater.add(chunk[:room])
            if len(chunk) > room or inflater.full:
                return Fetched(str(url), response.status, content_type, inflater.body, truncated=True)
        return Fetched(str(url), response.status, content_type, inflater.body, truncated=False)


class TcpNetwork(httpcore.AsyncNetworkBackend):
    """Connects over TCP only."""

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no URL names a Unix socket."""
        raise FetchRefused("unix sockets are refused")


class PinnedNetwork(TcpNetwork):
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
            return Connection(stream)
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts of httpcore."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        literal = _literal(host)
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
    """Resolve a name with the system's resolver.

    Raises:
        OSError: the name has no address.
    """
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def check_url(url: str, ports: frozenset[int] = _PORTS) -> httpx.URL:
    """Parse a URL and check everything that needs no look-up.

    Raises:
        FetchRefused: the URL is not allowed; the message names the part.
    """
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
    port = _port(parsed)
    if port not in ports:
        raise FetchRefused(f"port {port} is not allowed; allowed are {', '.join(map(str, sorted(ports)))}")
    _check_host(host)
    return parsed


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _check_host(host: str) -> None:
    name = host.rstrip(".").lower()
    if not name or "%" in name:
        raise FetchRefused(f"host {host!r} is not allowed")
    if _NUMERIC_HOST.fullmatch(name) and not (_DOTTED_QUAD.fullmatch(name) and _literal(name)):
        raise FetchRefused(f"host {host!r}: write an IPv4 address as four decimal numbers")
    if name.rpartition(".")[2] in _LOCAL_NAMES or any(name.endswith(f".{local}") for local in _LOCAL_NAMES):
        raise FetchRefused(f"host {host!r} is a local name")


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]").rstrip("."))
    except ValueError:
        return None


def _wire_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _headers(url: httpx.URL) -> list[tuple[bytes, bytes]]:
    return [(b"Host", url.netloc), *_HEADERS]


def _described(error: Exception) -> str:
    # The error of a connection that the server closes has no text.
    return f"{type(error).__name__}: {str(error) or 'the connection was closed'}"


def _header(response: httpcore.Response, name: bytes) -> str:
    values = [value for key, value in response.headers if key.lower() == name]
    return values[0].decode("latin-1").strip() if values else ""
