"""Model servers that send bombs: they end with a reason, in time, and others do not wait."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from resource import RUSAGE_SELF, getrusage

import pytest
import zstandard
from aiohttp import web
from tests.agent.providers.histories import user
from tests.support.deltas import Shown
from tests.support.hostile_servers import BLOCKED_S, Stalls, raw_server
from tests.support.web_server import web_server

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import Provider, ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed

VENDORS = ("anthropic", "openai", "backboard")
UNPACKED = 64 * 1024 * 1024
DEADLINE_S = 20.0
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1),
    "deflate": lambda data: zlib.compress(data, 1),
    "zstd": zstandard.ZstdCompressor().compress,
    "br": lambda data: data[:1000],
}


@asynccontextmanager
async def server(
    body: bytes, headers: dict[str, str], status: int = 200, times: int = 1
) -> AsyncGenerator[tuple[str, list[web.Request]]]:
    requests: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        await request.read()
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        for _ in range(times):
            await response.write(body)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with web_server(app) as port:
        yield f"http://127.0.0.1:{port}", requests


@asynccontextmanager
async def provider(vendor: str, url: str, **settings: float) -> AsyncGenerator[Provider]:
    names = {f"{name}_base_url": url for name in VENDORS}
    fields = {**names, "max_attempts": 1, "max_wait_s": 0, **settings}
    providers = Providers(ProviderSettings.model_validate(fields))
    await providers.warm(f"{vendor}:any")
    try:
        yield providers.choose(f"{vendor}:any")[0]
    finally:
        await providers.close()


async def complete(provider: Provider) -> ModelReply:
    request = ModelRequest("m", "", (user("Hello."),))
    return await provider.complete(request, deltas=Shown(), deadline_s=DEADLINE_S)


async def import_client(vendor: str) -> None:
    """Let a client import what it needs for its first request, which no stall of a bomb may contain."""
    async with raw_server(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as url:
        async with provider(vendor, url) as model:
            with pytest.raises(ProviderFailed):
                await complete(model)


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_reply_is_refused_before_it_is_unpacked(vendor: str, coding: str) -> None:
    bomb = CODINGS[coding](bytes(UNPACKED))
    headers = {"content-encoding": coding, "content-type": "text/event-stream"}
    async with server(bomb, headers) as (url, requests), provider(vendor, url) as model:
        peak = getrusage(RUSAGE_SELF).ru_maxrss
        with pytest.raises(ProviderFailed, match="compresses its reply"):
            await complete(model)
        assert getrusage(RUSAGE_SELF).ru_maxrss - peak < UNPACKED // 1024 // 4
    assert {request.headers["accept-encoding"] for request in requests} == {"identity"}


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_redirect_is_refused_with_its_reason(vendor: str, status: int) -> None:
    async with server(b"", {}) as (other, received):
        headers = {"location": f"{other}/elsewhere"}
        async with server(b"", headers, status) as (url, _), provider(vendor, url) as model:
            with pytest.raises(ProviderFailed, match="redirects"):
                await complete(model)
    assert received == []


def many_calls(count: int) -> bytes:
    calls = [{"index": number, "id": f"k{number}", "function": {"name": "f"}} for number in range(count)]
    return b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode() + b"\n\n"


EMPTY_EVENTS = b"data:{}\n\n" * 20_000
EMPTY_LINES = b":\n" * 100_000
UNFINISHED = b"data: x\n" * 20_000
BOMBS: dict[str, tuple[bytes, int]] = {
    "calls in one event": (many_calls(200_000), 1),
    "calls in many events": (many_calls(10) * 20_000, 1),
    "empty events": (EMPTY_EVENTS, 200),
    "empty lines": (EMPTY_LINES, 200),
    "an event without end": (UNFINISHED, 50),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_a_bomb_ends_in_time_and_does_not_hold_the_loop(vendor: str, bomb: str) -> None:
    body, times = BOMBS[bomb]
    headers = {"content-type": "text/event-stream"}
    await import_client(vendor)
    async with server(body, headers, times=times) as (url, _), provider(vendor, url) as model:
        stalls, began = Stalls(), asyncio.get_running_loop().time()
        try:
            reply = await complete(model)
        except ProviderFailed:
            reply = None
        took = asyncio.get_running_loop().time() - began
    assert stalls.longest < BLOCKED_S
    assert took < DEADLINE_S + 1
    assert reply is None or reply.finish_reason == "length"


INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"


@pytest.mark.parametrize("vendor", VENDORS[:2])
async def test_endless_interim_responses_end_in_time_and_do_not_hold_the_loop(vendor: str) -> None:
    await import_client(vendor)
    async with raw_server(INTERIM * 100, INTERIM * 2_000) as url, provider(vendor, url) as model:
        stalls, began = Stalls(), asyncio.get_running_loop().time()
        with pytest.raises(ProviderFailed):
            await complete(model)
        took = asyncio.get_running_loop().time() - began
    assert stalls.longest < BLOCKED_S
    assert took < DEADLINE_S / 2


@pytest.mark.parametrize("vendor", VENDORS[:2])
async def test_silence_after_an_interim_response_ends_in_time(vendor: str) -> None:
    async with raw_server(INTERIM, every_s=0.1) as url, provider(vendor, url, request_timeout_s=1) as model:
        with pytest.raises(ProviderFailed):
            async with asyncio.timeout(DEADLINE_S / 2):
                await complete(model)


@pytest.mark.parametrize("vendor", VENDORS[:2])
async def test_a_refusal_that_trickles_is_not_awaited_to_its_end(vendor: str) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\r\nNo."
    async with raw_server(refusal, b".", 0.1) as url, provider(vendor, url) as model:
        with pytest.raises(ProviderFailed, match="400"):
            async with asyncio.timeout(DEADLINE_S / 2):
                await complete(model)


@pytest.mark.parametrize("vendor", VENDORS[:2])
async def test_an_endless_refusal_is_read_to_its_limit(vendor: str) -> None:
    body = b"x" * 1024 * 1024
    async with server(body, {}, 400, times=200) as (url, _), provider(vendor, url) as model:
        peak = getrusage(RUSAGE_SELF).ru_maxrss
        with pytest.raises(ProviderFailed, match="400"):
            await complete(model)
        assert getrusage(RUSAGE_SELF).ru_maxrss - peak < 50_000


@pytest.mark.parametrize("tokens", [-5, 10**26])
async def test_an_impossible_usage_is_ignored(tokens: int, caplog: pytest.LogCaptureFixture) -> None:
    chunk = {
        "choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 7},
    }
    body = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    headers = {"content-type": "text/event-stream"}
    async with server(body, headers) as (url, _), provider("openai", url) as model:
        reply = await complete(model)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 7)
    assert "a reported number of tokens is ignored" in caplog.text
