"""One connection of the proxy: a tunnel (CONNECT) or one plain HTTP request.

The proxy responds 400 to invalid HTTP, 403 to requests that the rules forbid, and 502 if the server does not
respond.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import h11
import httpx

from banksman.tool_runner.egress.client import Egress, FetchFailed
from banksman.tool_runner.egress.hosts import HostRules
from banksman.tool_runner.egress.proxy.forward import forward
from banksman.tool_runner.egress.proxy.wire import READ_BYTES, Exchange, Meter, OverLimit, ProxyErrors, Wire
from banksman.tool_runner.egress.urls import FetchRefused
from banksman.tool_runner.limits import ProxyLimits

_MAX_HEAD_BYTES = 32 * 1024
_MAX_TARGET_CHARS = 200
"""Characters of a target in the log."""


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    exchange: Exchange,
    egress: Egress,
    rules: HostRules,
    meter: Meter,
    limits: ProxyLimits,
) -> None:
    """Serve one connection to its end and record it in `exchange`."""
    client = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    try:
        async with asyncio.timeout(limits.head_timeout_s):
            request = await _head(client, reader)
        url = _requested_url(request, exchange)
        upstream = await egress.connect(url, within=rules)
    except (h11.RemoteProtocolError, TimeoutError, EOFError, OSError, _NotProxied) as error:
        await _refuse(writer, exchange, 400, str(error) or type(error).__name__)
        return
    except FetchRefused as refused:
        await _refuse(writer, exchange, 403, str(refused))
        return
    except FetchFailed as failed:
        await _refuse(writer, exchange, 502, str(failed))
        return
    wire = Wire(reader, writer, upstream, exchange, meter, limits.idle_timeout_s)
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


class _NotProxied(Exception):
    """A request that a proxy does not serve."""


async def _head(client: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    while (event := client.next_event()) is h11.NEED_DATA:
        client.receive_data(await reader.read(READ_BYTES))
    if not isinstance(event, h11.Request):
        raise EOFError("the connection ended before a request")
    return event


def _requested_url(request: h11.Request, exchange: Exchange) -> httpx.URL:
    """Return the target of the request as a URL, which is not checked yet."""
    target = request.target.decode("latin-1")
    exchange.method = request.method.decode("latin-1")[:20]
    exchange.target = _printable(target)
    tunnel = request.method == b"CONNECT"
    if tunnel and not target.rpartition(":")[2].isdigit():
        raise _NotProxied("CONNECT needs host:port")
    if not tunnel and not target.lower().startswith("http://"):
        raise _NotProxied("this is a proxy: it accepts CONNECT host:port, or http:// with a host")
    try:
        url = httpx.URL(f"https://{target}/" if tunnel else target)
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchRefused(f"not a URL: {error}") from error
    # "host:443/path" or "host:443?x" would otherwise pass as a target of CONNECT.
    if tunnel and (url.path != "/" or url.query or url.fragment):
        raise _NotProxied("CONNECT needs host:port")
    return url


def _printable(target: str) -> str:
    # Queries often contain credentials.
    place = target.partition("?")[0][:_MAX_TARGET_CHARS]
    return "".join(char if char.isprintable() else "?" for char in place)


async def _refuse(writer: asyncio.StreamWriter, exchange: Exchange, status: int, reason: str) -> None:
    exchange.outcome = f"{status} {reason}"
    body = f"banksman: {reason}\n".encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(*ProxyErrors):
        writer.write(head.encode() + body)
        await writer.drain()


async def _tunnel(client: h11.Connection, wire: Wire) -> None:
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
