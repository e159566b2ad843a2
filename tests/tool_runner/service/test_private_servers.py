"""Fetches from private servers: only allowed addresses and ports, and no redirects to others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from banksman.contracts.errors import BadInput
from banksman.contracts.urls import UrlRefused
from banksman.runtime.settings import load
from banksman.tool_runner.egress.client import Egress, HostRules
from banksman.tool_runner.settings import FetchLimits, ToolRunnerServiceSettings

TLS = ssl.create_default_context()


@asynccontextmanager
async def answering(head: str, body: str = "") -> AsyncIterator[str]:
    """Run a server with one fixed response; yield its address and port."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def egress(*private: str, **rules: tuple[str, ...]) -> Egress:
    return Egress(FetchLimits(timeout_s=5), hosts=HostRules(**rules), private=private, ssl_context=TLS)


async def test_allowed_private_server_can_be_fetched_from() -> None:
    async with answering("200 OK", "inside") as server:
        assert (await egress(server).get(f"http://{server}/")).body == b"inside"


async def test_another_port_of_an_allowed_address_is_refused() -> None:
    async with answering("200 OK") as allowed, answering("200 OK") as other:
        with pytest.raises(UrlRefused):
            await egress(allowed).get(f"http://{other}/")


async def test_allowed_private_server_cannot_redirect_to_another() -> None:
    async with answering("200 OK") as second:
        redirect = f"302 Found\r\nLocation: http://{second}/"
        async with answering(redirect) as first:
            with pytest.raises(UrlRefused):
                await egress(first, second).get(f"http://{first}/")


@pytest.mark.parametrize("text", ["10.0.0.1", "localhost:80", "10.0.0.1:0", "10.0.0.1:http", ""])
def test_allowed_private_address_needs_an_address_and_a_port(text: str) -> None:
    own = {"egress": {"allow_private_addresses": [text]}}
    with pytest.raises(BadInput, match="ALLOW_PRIVATE_ADDRESSES") as refused:
        load(ToolRunnerServiceSettings, tool_runner=own)
    assert refused.value.expected == "an address and a port, such as 10.0.0.5:8080"
