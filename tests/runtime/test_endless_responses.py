"""Servers that send much, but no content: each client of httpcore gives up soon, and others do not wait."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx2
import pytest

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.messages import UserMessage
from banksman.contracts.urls import parse_url
from banksman.contracts.workspaces import RepositorySource
from banksman.gateway.pinned_http import PinnedHttp
from banksman.sdk.transports.http import HttpApi
from banksman.tool_runner.egress.client import ANY_HOST, Egress
from banksman.tool_runner.egress.git import fetch_branch
from banksman.tool_runner.mcp.connection import ConnectionState
from banksman.tool_runner.mcp.transports import CheckedTransport, ReceiptMeter
from banksman.tool_runner.settings import FetchLimits
from tests.support.deltas import Shown
from tests.support.hostile_servers import BLOCKED_S, Stalls, raw_server

DEADLINE_S, SOON_S = 30.0, 15.0
REQUEST = ModelRequest("m", "", (UserMessage(message_id="m1", content="go"),), ())
REASON = "besides content"


async def send_webhook(url: str) -> None:
    async with PinnedHttp().request("POST", parse_url(url), {}, b"{}", allowed=lambda _: True) as response:
        await response.aread()


def egress(url: str) -> Egress:
    ports = frozenset({parse_url(url).port})
    return Egress(FetchLimits(timeout_s=DEADLINE_S), ports=ports, address_allowed=lambda _: True)


async def fetch(url: str) -> None:
    await egress(url).get(url)


async def fetch_repository(url: str) -> None:
    await fetch_branch(egress(url), RepositorySource(repository=f"{url}/r.git"), None, io.BytesIO(), 10**6)


async def request_mcp_server(url: str) -> None:
    state = ConnectionState()
    transport = CheckedTransport(egress(url), ANY_HOST, ReceiptMeter(), state)
    try:
        async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
            await client.post(url, json={})
    except httpx2.TransportError as error:
        raise OSError(state.problem) from error


async def call_gateway(url: str) -> None:
    api = HttpApi(url, None, retries=False)
    try:
        await api.request("GET", "/context/me")
    finally:
        await api.client.aclose()


def complete(api: str) -> Callable[[str], Awaitable[None]]:
    async def complete(url: str) -> None:
        if api != "backboard":
            pytest.importorskip("pydantic_ai")
        entry = {"api": api, "base_url": url, "api_key": "k"}
        settings = {"providers": {"other": entry}, "max_wait_s": 0, "max_attempts": 1}
        providers = Providers(ProviderSettings.model_validate(settings))
        await providers.warm("other:m")
        try:
            await providers.choose("other:m")[0].complete(REQUEST, deltas=Shown(), deadline_s=DEADLINE_S)
        finally:
            await providers.close()

    return complete


APIS = ("backboard", "cohere", "google", "huggingface", "mistral")
CLIENTS: dict[str, Callable[[str], Awaitable[None]]] = {
    "webhook": send_webhook,
    "web_fetch": fetch,
    "repository": fetch_repository,
    "mcp": request_mcp_server,
    "sdk": call_gateway,
    **{api: complete(api) for api in APIS},
}


def chunked(client: str) -> bytes:
    kind = "application/x-git-upload-pack-advertisement" if client == "repository" else "text/event-stream"
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


REFUSAL = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
ENDLESS = {
    "interim responses": b"HTTP/1.1 102 Processing\r\n\r\n" * 2_000,
    "chunks of one byte": b"1\r\n0\r\n" * 10_000,
    "extensions of chunks": b"1;" + b"e" * 30_000 + b"\r\n0\r\n",
}


@pytest.mark.parametrize("endless", ENDLESS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_response_without_content_ends_soon_and_does_not_hold_the_loop(
    client: str, endless: str
) -> None:
    async with raw_server(REFUSAL) as url:
        # The SDKs import more with their first request.
        with suppress(Exception):
            await CLIENTS[client](url)
    first = b"" if endless == "interim responses" else chunked(client)
    async with raw_server(first, ENDLESS[endless]) as url:
        stalls = Stalls()
        with pytest.raises(Exception, match=REASON):
            async with asyncio.timeout(SOON_S):
                await CLIENTS[client](url)
    assert stalls.longest < BLOCKED_S


@pytest.mark.parametrize("api", APIS)
async def test_a_deeply_nested_reply_is_a_failure_with_a_reason(api: str) -> None:
    body = b"data: " + b"[" * 100_000 + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with raw_server(head + body) as url:
        with pytest.raises(ProviderFailed):
            await CLIENTS[api](url)
