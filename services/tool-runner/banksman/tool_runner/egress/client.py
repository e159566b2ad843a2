"""The only HTTP client of the runner, and the rules for hosts. It connects to checked addresses only."""

from __future__ import annotations

import asyncio
import fnmatch
import ssl
import zlib
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

import httpcore

from banksman.contracts.tools import NetworkPolicy, split_pattern
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.runtime import pinned_network
from banksman.runtime.addresses import is_local_name, is_public
from banksman.tool_runner.settings import FetchLimits

PORTS = frozenset({80, 443, 8080, 8443})


def check_url(url: Url, ports: frozenset[int] = PORTS) -> None:
    """Check a URL without a DNS look-up; raise `UrlRefused` if it is not allowed."""
    if url.port not in ports:
        allowed = ", ".join(map(str, sorted(ports)))
        raise UrlRefused(f"port {url.port} is not allowed; allowed are {allowed}")
    if is_local_name(url.host):
        raise UrlRefused(f"host {url.host!r} is a local name")


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


T = TypeVar("T")
_STEP_BYTES = 64 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = (
    (b"User-Agent", b"banksman"),
    (b"Accept-Encoding", b"gzip, deflate"),
    # A reused connection would bypass the address check of the next fetch.
    (b"Connection", b"close"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an API. `content` is the body."""

    method: str
    url: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content: bytes = b""


_PAGE = Request("GET", "", ((b"Accept", b"text/*, application/json, application/xml;q=0.9, */*;q=0.1"),))


class FetchFailed(Exception):
    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Fetched:
    url: str
    """The URL after all redirects."""
    status: int
    content_type: str
    body: bytes
    truncated: bool
    """True if the body exceeded a limit; then `body` is its beginning."""


class Egress:
    def __init__(
        self,
        limits: FetchLimits,
        *,
        hosts: HostRules | None = None,
        ports: frozenset[int] = PORTS,
        resolver: pinned_network.Resolver = pinned_network.resolve,
        address_allowed: pinned_network.AddressPolicy = is_public,
        ssl_context: ssl.SSLContext | None = None,
        private: Iterable[str] = (),
    ) -> None:
        """`private` are servers as `address:port`, whose address may be private."""
        self._limits = limits
        self._hosts = hosts or ANY_HOST
        self._ports = ports
        self._network = pinned_network.PinnedNetwork(resolver, address_allowed)
        self.ssl_context = ssl_context or ssl.create_default_context()
        """Verifies the servers of TLS connections."""
        self._private = {
            server: _client_for(*server, limits, self.ssl_context) for server in map(_parse, private)
        }

    async def get(self, url: str, *, timeout_s: float | None = None, within: HostRules = ANY_HOST) -> Fetched:
        """GET a URL and follow redirects. Each hop is checked like the first.

        Only the first hop may be a private server: a public page cannot redirect to one. `timeout_s` applies
        to all hops together, up to the limit's default. `within` narrows the client's rules. Raises
        `UrlRefused` or `FetchFailed`.
        """
        parsed = parse_url(url)
        return await self._in_time(self._client(parsed)._follow(parsed, within), timeout_s)

    async def send(self, request: Request, *, timeout_s: float, within: HostRules) -> Fetched:
        """Send one request; a redirect is a failure, so that no other server gets its headers.

        Raises as `get`.
        """
        url = parse_url(request.url)
        client = self._client(url)
        sent = client._hop(client._checked(url, within), request)
        fetched = await self._in_time(sent, timeout_s)
        if isinstance(fetched, Url):
            raise FetchFailed("the server responded with a redirect")
        return fetched

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[httpcore.Response]:
        """Send one request, and follow no redirect. The block reads the response, with limits of its own.

        Raises as `get`, but for time-outs.
        """
        url = parse_url(request.url)
        client = self._client(url)
        async with client._exchange(client._checked(url, ANY_HOST), request) as response:
            yield response

    async def _in_time(self, fetching: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        deadline_s = min(timeout_s or self._limits.timeout_s, self._limits.timeout_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await fetching
        except TimeoutError as error:
            raise FetchFailed(f"no complete response within {deadline_s:g} s", timed_out=True) from error

    async def connect(self, url: Url, *, within: HostRules) -> httpcore.AsyncNetworkStream:
        client = self._client(url)
        checked = client._checked(url, within)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await client._network.connect_tcp(checked.host, checked.port)
        except TimeoutError as error:
            raise FetchFailed("the connection timed out", timed_out=True) from error
        except (*pinned_network.HttpErrors, OSError, ValueError) as error:
            raise FetchFailed(_described(error)) from error

    def trusts(self, url: Url) -> bool:
        """Return whether the operator has allowed the address of a URL by name, so that it needs no https."""
        return self._client(url) is not self

    def _client(self, url: Url) -> Egress:
        """Return the client for a first hop: that of a private server, or this one."""
        return self._private.get((url.host, url.port), self)

    async def _follow(self, url: Url, within: HostRules) -> Fetched:
        current = self._checked(url, within)
        for _ in range(self._limits.max_redirects + 1):
            result = await self._hop(current)
            if isinstance(result, Fetched):
                return result
            current = self._checked(result, within)
        raise UrlRefused(f"more than {self._limits.max_redirects} redirects")

    def _checked(self, url: Url, within: HostRules) -> Url:
        check_url(url, self._ports)
        if not self._hosts.admit(url.host, url.port):
            raise UrlRefused(f"host {url.host!r} is not allowed on this runner")
        if not within.admit(url.host, url.port):
            raise UrlRefused(f"host {url.host!r} is not allowed for this assistant")
        return url

    async def _hop(self, url: Url, request: Request = _PAGE) -> Fetched | Url:
        async with self._exchange(url, request) as response:
            location = header(response, b"location")
            if response.status in _REDIRECTS and location:
                return url.join(location)
            return await self._read(url, response)

    @asynccontextmanager
    async def _exchange(self, url: Url, request: Request) -> AsyncGenerator[httpcore.Response]:
        own = {name for name, _ in request.headers}
        general = (header for header in _HEADERS if header[0] not in own)
        async with httpcore.AsyncConnectionPool(
            ssl_context=self.ssl_context, network_backend=self._network, max_keepalive_connections=0
        ) as pool:
            try:
                async with pool.stream(
                    request.method,
                    pinned_network.connected_url(url),
                    headers=[(b"Host", url.netloc.encode()), *general, *request.headers],
                    content=request.content or None,
                ) as response:
                    yield response
            except (*pinned_network.HttpErrors, OSError, ValueError) as error:
                raise FetchFailed(_described(error)) from error

    async def _read(self, url: Url, response: httpcore.Response) -> Fetched:
        content_type = header(response, b"content-type")
        try:
            inflater = Inflater(header(response, b"content-encoding"), self._limits.max_body_bytes)
        except UnsupportedEncoding as error:
            raise FetchFailed(str(error)) from error
        room, truncated = self._limits.max_received_bytes, False
        async for chunk in response.aiter_stream():
            # Raw bytes are inflated here with a limit; the library would inflate a whole chunk at once.
            inflater.add(chunk[:room])
            if truncated := len(chunk) > room or inflater.full:
                break
            room -= len(chunk)
        return Fetched(str(url), response.status, content_type, inflater.body, truncated)


def _described(error: Exception) -> str:
    # If the server closes the connection, the error has no text or, during a handshake, a text of OpenSSL.
    closed = any(isinstance(cause, ssl.SSLZeroReturnError | ssl.SSLEOFError) for cause in error.args)
    text = "" if closed else str(error)
    return f"{type(error).__name__}: {text or 'the connection was closed'}"


def header(response: httpcore.Response, name: bytes) -> str:
    values = [value for key, value in response.headers if key.lower() == name]
    return values[0].decode("latin-1").strip() if values else ""


def _client_for(address: str, port: int, limits: FetchLimits, ssl_context: ssl.SSLContext) -> Egress:
    return Egress(
        limits,
        hosts=HostRules(allowed=(address,)),
        ports=frozenset({port}),
        address_allowed=lambda found: found == ip_address(address),
        ssl_context=ssl_context,
    )


def _parse(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return str(ip_address(host.strip("[]"))), int(port)


class _Decompressor(Protocol):
    @property
    def unconsumed_tail(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


class UnsupportedEncoding(Exception):
    """A `Content-Encoding` that is not exactly one of identity, gzip and deflate."""


class Inflater:
    """Collects a response body and inflates at most `max_bytes` of it, so that a gzip bomb stays small."""

    def __init__(self, content_encoding: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()
        self.full = False
        """True after bytes above the limit were added."""
        self._begun = False
        self._encoding = content_encoding.strip().lower()
        match self._encoding:
            case "" | "identity":
                self._inflate: _Decompressor | None = None
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(_GZIP_WINDOW)
            case "deflate":
                self._inflate = zlib.decompressobj()
            case _:
                raise UnsupportedEncoding(f"content encoding {content_encoding[:80]!r} is not supported")

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    def add(self, chunk: bytes) -> None:
        """Add received bytes, up to the limit; raise ValueError if they do not have the header's encoding."""
        inflate = self._decompressor(chunk)
        if inflate is None:
            self._append(chunk)
            return
        pending = chunk
        try:
            while pending and not self.full:
                # Without max_length, zlib would inflate a bomb of one chunk to a thousand times its size.
                self._append(inflate.decompress(pending, _STEP_BYTES))
                pending = inflate.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"the body is not valid {self._encoding}: {error}") from error

    def _decompressor(self, chunk: bytes) -> _Decompressor | None:
        if self._encoding == "deflate" and not self._begun and chunk and chunk[0] & 0x0F != zlib.DEFLATED:
            # Some servers send raw deflate without the zlib header that RFC 9110, section 8.4.1.2, requires.
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = self._begun or bool(chunk)
        return self._inflate

    def _append(self, data: bytes) -> None:
        room = self._max_bytes - len(self._body)
        self._body += data[:room]
        self.full = self.full or len(data) > room
