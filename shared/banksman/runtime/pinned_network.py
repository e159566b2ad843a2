"""Connections to addresses that were checked: resolved once, checked, pinned, and compared with the peer."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import httpcore

from banksman.contracts.urls import Url, UrlRefused, literal_address
from banksman.library_internals.httpcore_client import bound_responses
from banksman.runtime.addresses import Address, is_public
from banksman.runtime.outgoing import proxy_for, tunnel_request

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Resolves host and port to addresses as text."""

AddressPolicy = Callable[[Address], bool]

HttpErrors = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
"""Errors of a connection or of the server's HTTP."""

_MAX_HEAD_BYTES = 16 * 1024
"""Maximum bytes of a proxy's response."""
_LOOK_UPS = ThreadPoolExecutor(128, thread_name_prefix="look-up")
"""Separate threads for DNS look-ups, which may hang as long as the DNS server does and cannot be cancelled.

In the default executor, such look-ups would take the threads of files and of the connection to NATS.
"""
_DOMAIN_LOOK_UPS = 8
"""Look-ups of names in one domain at a time, so that a domain whose server never answers stops no other."""
_places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()


def connected_url(url: Url) -> httpcore.URL:
    """Return a URL for httpcore, made of parsed parts: its text is not parsed again."""
    return httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target)


class PinnedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that it resolved and checked itself.

    A client that checks a name and resolves it again to connect can get another address (DNS rebinding). For
    the same reason, a proxy of the environment receives the checked address and not the name. Private
    addresses are connected directly: a proxy to the outside does not reach them.
    """

    def __init__(self, resolver: Resolver, address_allowed: AddressPolicy) -> None:
        bound_responses("httpcore")
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
                proxy = proxy_for(f"https://{host}:{port}") if is_public(address) else None
                if proxy is not None:
                    return await self._through(proxy, address, port, timeout)
                stream = await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            await self._verify_peer(stream, address)
            return TcpStream(stream)
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def _through(self, proxy: str, address: Address, port: int, limit_s: float | None) -> TcpStream:
        """Return a tunnel to a checked address; raise `ConnectError` if the proxy refuses to open it."""
        parts = urlsplit(proxy)
        stream = await self._backend.connect_tcp(parts.hostname or "", parts.port or 80, limit_s)
        head = b""
        try:
            await stream.write(tunnel_request(proxy, address, port), limit_s)
            while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES:
                if not (piece := await stream.read(_MAX_HEAD_BYTES, limit_s)):
                    break
                head += piece
        except BaseException:
            await stream.aclose()
            raise
        # The client speaks first in TLS and in HTTP, so nothing may follow the head.
        if not re.match(rb"HTTP/1\.[01] 2\d\d", head) or not head.endswith(b"\r\n\r\n"):
            await stream.aclose()
            line = head.partition(b"\r\n")[0][:100].decode(errors="replace")
            raise httpcore.ConnectError(f"the proxy opened no tunnel to {address}: {line}")
        return TcpStream(stream)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        literal = literal_address(host)
        resolved = [str(literal)] if literal else await self._resolver(host, port)
        # The part after % is an IPv6 zone id.
        addresses = [ip_address(each.partition("%")[0]) for each in resolved]
        # One private address is enough to refuse: which address a client connects to depends on failures.
        for address in addresses:
            if not self._address_allowed(address):
                where = host if host == str(address) else f"{host} is at {address}, which"
                raise UrlRefused(f"{where} is not a public address")
        return addresses

    async def _verify_peer(self, stream: httpcore.AsyncNetworkStream, address: Address) -> None:
        # Defence in depth: the connected peer must be the checked address.
        peer = cast(tuple[str, int] | None, stream.get_extra_info("server_addr"))
        if peer is None or ip_address(peer[0].partition("%")[0]) != address:
            await stream.aclose()
            raise UrlRefused(f"connected to {peer!r} instead of {address}")


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name; wait while `_DOMAIN_LOOK_UPS` others of its domain are looked up."""
    domain = ".".join(host.rsplit(".", 2)[-2:])
    places = _places.setdefault(domain, asyncio.Semaphore(_DOMAIN_LOOK_UPS))
    await places.acquire()
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    running = asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)

    def ended(look_up: asyncio.Future[Any]) -> None:
        places.release()
        if not look_up.cancelled():
            # Otherwise asyncio logs the exception of a look-up that nothing awaits.
            look_up.exception()

    running.add_done_callback(ended)
    # A look-up that its caller no longer awaits keeps its thread, and so its place.
    found = await asyncio.shield(running)
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
