"""The HTTP proxy of a command whose assistant's policy allows connections, under the rules of a fetch.

A connection is a tunnel (CONNECT) or one plain HTTP request. The proxy responds 400 to invalid HTTP, 403 to
requests that the rules forbid, and 502 if the server does not respond. A plain request is parsed and
serialised again: bytes that the parser did not understand are not forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass

import h11
import httpcore

from banksman.contracts.tools import NetworkPolicy
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.runtime.backoff import Backoff
from banksman.tool_runner.egress.client import Egress, FetchFailed, HostRules
from banksman.tool_runner.egress.grants import NO_PERMISSIONS, Grant, Permissions
from banksman.tool_runner.settings import ProxyLimits

logger = logging.getLogger(__name__)

_LINGER_S = 2.0
_MAX_HEAD_BYTES = 32 * 1024
_MAX_TARGET_CHARS = 200
"""Characters of a target in the log."""
READ_BYTES = 64 * 1024
ProxyErrors = (httpcore.NetworkError, httpcore.TimeoutException, OSError, EOFError)
"""Errors that end either side of a connection."""
# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"proxy-authorization", b"proxy-authenticate", b"expect",
    }
)  # fmt: skip
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
"""Seconds before accept(2) is repeated after it failed."""


@dataclass(frozen=True, slots=True)
class CommandProxy:
    egress: Egress
    limits: ProxyLimits
    permissions: Permissions = NO_PERMISSIONS

    def grant(self, policy: NetworkPolicy | None) -> Grant | None:
        return self.permissions.grant(policy, self.egress)

    @contextlib.asynccontextmanager
    async def session(self, rules: HostRules, label: str) -> AsyncGenerator[ProxySession]:
        """Serve the proxy of one command, which the log calls `label`; close all connections at the end."""
        session = ProxySession(self.egress, self.limits, rules, label)
        try:
            yield session
        finally:
            await session.close()


@dataclass
class ProxySession:
    egress: Egress
    limits: ProxyLimits
    rules: HostRules
    label: str

    def __post_init__(self) -> None:
        self._meter = TransferMeter(self.limits.max_bytes)
        self._slots = asyncio.Semaphore(self.limits.max_connections)
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._total = 0

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on `listener`; the session owns and closes it."""
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def close(self) -> None:
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while self._total < self.limits.max_total_connections:
                # The slot is taken before accept, so that waiting connections stay in the kernel's backlog.
                await self._slots.acquire()
                connected = await self._next(listener)
                self._total += 1
                task = loop.create_task(self._serve(connected))
                self._connections.add(task)
                task.add_done_callback(self._ended)
        logger.warning("%s: proxy: %d connections were accepted, which is the limit", self.label, self._total)

    async def _next(self, listener: socket.socket) -> socket.socket:
        """Return the next connection; it waits in the kernel's backlog while it cannot be accepted."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                connected, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                # accept(2) fails while the process or the machine has too many open files or too little
                # memory (EMFILE, ENFILE, ENOBUFS, ENOMEM), and for a connection that ended (ECONNABORTED).
                logger.warning("%s: proxy: no connection is accepted: %s", self.label, error)
                await backoff.pause()
            else:
                return connected

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._slots.release()

    async def _serve(self, connected: socket.socket) -> None:
        exchange = ProxyLogEntry()
        started = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(sock=connected)
        except (OSError, ValueError) as error:
            # epoll_ctl(2) has no memory, or the socket that the sandbox passed is not a stream socket.
            connected.close()
            logger.warning("%s: proxy: a connection could not be served: %s", self.label, error)
            return
        try:
            await self._exchange(reader, writer, exchange)
        except Exception:
            logger.exception("%s: proxy: a connection failed", self.label)
        else:
            await _shut_down(reader, writer)
        finally:
            writer.transport.abort()
            logger.info(
                "%s: proxy: %s %s: %s, %d bytes up, %d bytes down, %.3f s",
                self.label,
                exchange.method or "-",
                exchange.target or "-",
                exchange.outcome,
                exchange.sent_bytes,
                exchange.received_bytes,
                time.monotonic() - started,
            )

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: ProxyLogEntry
    ) -> None:
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        try:
            async with asyncio.timeout(self.limits.head_timeout_s):
                request = await _head(client, reader)
            url = _requested_url(request, exchange)
            upstream = await self.egress.connect(url, within=self.rules)
        except (h11.RemoteProtocolError, TimeoutError, EOFError, OSError, _NotProxied) as error:
            await _refuse(writer, exchange, 400, str(error) or type(error).__name__)
            return
        except UrlRefused as refused:
            await _refuse(writer, exchange, 403, str(refused))
            return
        except FetchFailed as failed:
            await _refuse(writer, exchange, 502, str(failed))
            return
        wire = ProxiedConnection(reader, writer, upstream, exchange, self._meter, self.limits.idle_timeout_s)
        try:
            if request.method == b"CONNECT":
                await _tunnel(client, wire)
            else:
                await forward(client, request, url, wire)
        except* OverLimit:
            exchange.outcome = "the command transferred too many bytes"
        except* (*ProxyErrors, h11.ProtocolError) as errors:
            exchange.outcome = f"broken off: {type(errors.exceptions[0]).__name__}"
        finally:
            with contextlib.suppress(*ProxyErrors):
                await upstream.aclose()


async def _shut_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send end-of-file and read until the command closes its side, for at most `_LINGER_S` seconds.

    Closing a socket with unread data sends a reset (RFC 1122, 4.2.2.13), which discards the response that the
    command has not read yet.
    """
    with contextlib.suppress(OSError):
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(READ_BYTES):
                pass


class _NotProxied(Exception):
    pass


async def _head(client: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    while (event := client.next_event()) is h11.NEED_DATA:
        client.receive_data(await reader.read(READ_BYTES))
    if not isinstance(event, h11.Request):
        raise EOFError("the connection ended before a request")
    return event


def _requested_url(request: h11.Request, exchange: ProxyLogEntry) -> Url:
    target = request.target.decode("latin-1")
    exchange.method = request.method.decode("latin-1")[:20]
    exchange.target = _printable(target)
    tunnel = request.method == b"CONNECT"
    if tunnel and not target.rpartition(":")[2].isdigit():
        raise _NotProxied("CONNECT needs host:port")
    if not tunnel and not target.lower().startswith("http://"):
        raise _NotProxied("this is a proxy: it accepts CONNECT host:port, or http:// with a host")
    # "host:443/path" or "host?x:443" would otherwise pass as a target of CONNECT.
    if tunnel and any(end in target for end in "/?#"):
        raise _NotProxied("CONNECT needs host:port")
    return parse_url(f"https://{target}/" if tunnel else target)


def _printable(target: str) -> str:
    # Queries often contain credentials.
    place = target.partition("?")[0][:_MAX_TARGET_CHARS]
    return "".join(char if char.isprintable() else "?" for char in place)


async def _refuse(writer: asyncio.StreamWriter, exchange: ProxyLogEntry, status: int, reason: str) -> None:
    exchange.outcome = f"{status} {reason}"
    body = f"banksman: {reason}\n".encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(*ProxyErrors):
        writer.write(head.encode() + body)
        await writer.drain()


async def _tunnel(client: h11.Connection, wire: ProxiedConnection) -> None:
    await wire.to_client(b"HTTP/1.1 200 Connection established\r\n\r\n")
    early, _ = client.trailing_data
    if early:
        # Clients may send the TLS hello together with the CONNECT request.
        await wire.to_server(early)
    async with asyncio.TaskGroup() as tasks:
        up = tasks.create_task(_pump(wire.from_client, wire.to_server))
        await _pump(wire.from_server, wire.to_client)
        up.cancel()


async def _pump(source: Callable[[], Awaitable[bytes]], target: Callable[[bytes], Awaitable[None]]) -> None:
    while data := await source():
        await target(data)


@dataclass
class ProxyLogEntry:
    method: str = ""
    target: str = ""
    """Host and port of a tunnel; otherwise the URL without its query."""
    outcome: str = "ended"
    sent_bytes: int = 0
    received_bytes: int = 0


class OverLimit(Exception):
    """All connections of the command together have transferred the allowed bytes."""


@dataclass
class TransferMeter:
    """The bytes that the connections of a command may still transfer."""

    left: int

    def count(self, size: int) -> None:
        """Subtract transferred bytes; raise OverLimit if fewer were left."""
        self.left -= size
        if self.left < 0:
            raise OverLimit


@dataclass
class ProxiedConnection:
    """Both sides of a connection. Every transferred byte is counted."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: httpcore.AsyncNetworkStream
    exchange: ProxyLogEntry
    meter: TransferMeter
    idle_timeout_s: float

    async def from_client(self) -> bytes:
        return await self.reader.read(READ_BYTES)

    async def to_server(self, data: bytes) -> None:
        self.meter.count(len(data))
        await self.upstream.write(data, self.idle_timeout_s)
        self.exchange.sent_bytes += len(data)

    async def from_server(self) -> bytes:
        data = await self.upstream.read(READ_BYTES, self.idle_timeout_s)
        self.meter.count(len(data))
        self.exchange.received_bytes += len(data)
        return data

    async def to_client(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


async def forward(client: h11.Connection, request: h11.Request, url: Url, wire: ProxiedConnection) -> None:
    server = h11.Connection(h11.CLIENT)
    headers = _end_to_end(request.headers, b"host")
    # Transfer-Encoding is hop-by-hop: the body was decoded, so it is encoded again for the server.
    if any(name.lower() == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"Transfer-Encoding", b"chunked"))
    # The Host header names the checked host: the request's own header could select another virtual host.
    headers = [(b"Host", url.netloc.encode()), *headers, (b"Connection", b"close")]
    await _send(
        wire.to_server, server, h11.Request(method=request.method, target=url.target, headers=headers)
    )
    async with asyncio.TaskGroup() as tasks:
        up = tasks.create_task(_upload(client, server, wire))
        await _download(client, server, wire)
        up.cancel()


async def _upload(client: h11.Connection, server: h11.Connection, wire: ProxiedConnection) -> None:
    while True:
        # The proxy removes Expect, so the server will not send 100 Continue.
        if client.they_are_waiting_for_100_continue:
            await _send(wire.to_client, client, h11.InformationalResponse(status_code=100, headers=[]))
        match client.next_event():
            case h11.NEED_DATA:
                client.receive_data(await wire.from_client())
            case h11.Data() as data:
                await _send(wire.to_server, server, h11.Data(data=data.data))
            case h11.EndOfMessage():
                await _send(wire.to_server, server, h11.EndOfMessage())
                return
            case _:
                return


async def _download(client: h11.Connection, server: h11.Connection, wire: ProxiedConnection) -> None:
    while True:
        match server.next_event():
            case h11.NEED_DATA:
                server.receive_data(await wire.from_server())
            case h11.Response() as response:
                wire.exchange.outcome = f"status {response.status_code}"
                headers = [*_end_to_end(response.headers), (b"Connection", b"close")]
                forwarded = h11.Response(
                    status_code=response.status_code, headers=headers, reason=response.reason
                )
                await _send(wire.to_client, client, forwarded)
            case h11.Data() as data:
                await _send(wire.to_client, client, h11.Data(data=data.data))
            case h11.EndOfMessage():
                await _send(wire.to_client, client, h11.EndOfMessage())
                return
            case h11.InformationalResponse():
                pass
            case _:
                raise EOFError("the server ended the connection")


async def _send(write: Callable[[bytes], Awaitable[None]], side: h11.Connection, event: h11.Event) -> None:
    if data := side.send(event):
        await write(data)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]], *excluded: bytes) -> list[tuple[bytes, bytes]]:
    """Exclude the headers of this connection. h11 lower-cases the names."""
    pairs = list(headers)
    named = {
        name.strip().lower() for key, value in pairs if key == b"connection" for name in value.split(b",")
    }
    return [(key, value) for key, value in pairs if key not in _HOP_BY_HOP | named | set(excluded)]
