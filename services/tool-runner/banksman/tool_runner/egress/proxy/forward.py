"""Forwards one plain HTTP request.

The request is parsed and serialised again: bytes that the parser did not understand are not forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import h11
import httpx

from banksman.tool_runner.egress.proxy.wire import Wire

# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"proxy-authorization", b"proxy-authenticate", b"expect",
    }
)  # fmt: skip


async def forward(client: h11.Connection, request: h11.Request, url: httpx.URL, wire: Wire) -> None:
    """Forward one request and its response. The connection closes afterwards."""
    server = h11.Connection(h11.CLIENT)
    headers = _end_to_end(request.headers, b"host")
    # Transfer-Encoding is hop-by-hop: the body was decoded, so it is encoded again for the server.
    if any(name.lower() == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"Transfer-Encoding", b"chunked"))
    # The Host header names the checked host: the request's own header could select another virtual host.
    headers = [(b"Host", url.netloc), *headers, (b"Connection", b"close")]
    await _send(
        wire.to_server, server, h11.Request(method=request.method, target=url.raw_path, headers=headers)
    )
    async with asyncio.TaskGroup() as tasks:
        up = tasks.create_task(_upload(client, server, wire))
        await _download(client, server, wire)
        up.cancel()


async def _upload(client: h11.Connection, server: h11.Connection, wire: Wire) -> None:
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


async def _download(client: h11.Connection, server: h11.Connection, wire: Wire) -> None:
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
    """Return the end-to-end headers, without those of this connection. h11 lower-cases the names."""
    pairs = list(headers)
    named = {
        name.strip().lower() for key, value in pairs if key == b"connection" for name in value.split(b",")
    }
    return [(key, value) for key, value in pairs if key not in _HOP_BY_HOP | named | set(excluded)]
