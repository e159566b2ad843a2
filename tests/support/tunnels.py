"""A company's network: a proxy that opens tunnels, and a server that a private authority certifies."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import certifi
import pytest
from aiohttp import web

from banksman.runtime.settings import ServiceSettings, load
from tests.support.certificates import issued, server_context
from tests.support.proxies import listening

HOST, ADDRESS = "service.company.example", "192.0.66.2"
"""The server's name, and a public address, to which no packet is sent: the proxy uses the test's server."""
SECRET = "pass%20word"
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
_CHAT = 'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
_CANDIDATE = (
    'data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, '
    '"finishReason": "STOP"}]}\n\n'
)
_MESSAGE = (
    'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}}\n\n'
    'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\n\n'
    'data: {"type": "message_stop"}\n\n'
)


@dataclass
class Tunnels:
    """A proxy that connects each tunnel to one local port; a `Proxy`."""

    target: int
    port: int = 0
    opened: list[str] = field(default_factory=list[str])
    """Where clients wanted their tunnels to go."""
    logins: set[str | None] = field(default_factory=set[str | None])
    refuses: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Open one tunnel and forward both directions until either ends."""
        self._writers.add(client_out)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await client_in.readuntil(b"\r\n\r\n")).decode()
            method, where, _ = head.split(" ", 2)
            assert method == "CONNECT", head
            self.opened.append(where)
            lines = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
            self.logins.add(lines.get("Proxy-Authorization"))
            if self.refuses:
                client_out.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            else:
                server_in, server_out = await asyncio.open_connection("127.0.0.1", self.target)
                self._writers.add(server_out)
                client_out.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(client_in, server_out))
                    group.create_task(_pump(server_in, client_out))
        client_out.close()

    async def close(self) -> None:
        """End the tunnels that clients left open."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(65_536):
            sink.write(piece)
            await sink.drain()
    sink.close()


async def _handle(request: web.Request) -> web.Response:
    """Reply as each kind of server does."""
    await request.read()
    match request.path:
        case "/v1/chat/completions":
            return web.Response(text=_CHAT, content_type="text/event-stream")
        case "/v1/messages":
            return web.Response(text=_MESSAGE, content_type="text/event-stream")
        case "/v1beta/models/m:streamGenerateContent":
            return web.Response(text=_CANDIDATE, content_type="text/event-stream")
        case "/model/m/converse-stream":
            return web.json_response({"message": "The input is malformed."}, status=400)
        case "/.well-known/openid-configuration":
            base = f"https://{ADDRESS}"
            names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            return web.json_response({"issuer": base, **{name: f"{base}/{name}" for name in names}})
        case _:
            return web.json_response({"path": request.path, "data": []})


@asynccontextmanager
async def company_network(monkeypatch: pytest.MonkeyPatch, folder: Path) -> AsyncGenerator[Tunnels]:
    """Set the environment and the certificates of a company's network, as the settings of a service do."""
    authority, certificate = issued(folder, HOST, ADDRESS)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(certificate))
        await site.start()
        async with listening(Tunnels(runner.addresses[0][1])) as tunnels:
            for name in ("NO_PROXY", "no_proxy", "https_proxy"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:{SECRET}@127.0.0.1:{tunnels.port}")
            # Set, so that the values of `load` are removed after the test.
            for name in CA_VARIABLES:
                monkeypatch.setenv(name, os.environ.get(name, ""))
            load(ServiceSettings, ca_bundle=authority)
            yield tunnels
    finally:
        await runner.cleanup()


def untrusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the private authority again."""
    for name in CA_VARIABLES:
        monkeypatch.setenv(name, certifi.where())
