"""Clients that open connections and do not use them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from websockets.exceptions import ConnectionClosed

from banksman.cli.machine import free_port

FILES = 256
"""Files that the gateway's process may open."""
IDLE = 600
ADDRESSES = 60
SLOW_S = 1.0
PAUSE_S = 0.05
ALICE = {"authorization": f"Bearer {TOKENS['alice']}"}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(port: int, address: str = "127.0.0.1") -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what the server sent until it closed the connection."""
    received = b""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(65536):
                received = (received + more)[:1000]
    return received


async def is_open(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        try:
            async with asyncio.timeout(PAUSE_S):
                await reader.read()
        except TimeoutError:
            return True
    return False


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncGenerator[tuple[int, int]]:
    """A gateway with few files and without NATS; its port and its health port."""
    port, health = free_port(), free_port()
    keys = json.dumps([key_of("alice", "acme").model_dump(mode="json")])
    environment = {
        "PATH": os.environ["PATH"],
        "BANKSMAN_GATEWAY__PORT": str(port),
        "BANKSMAN_GATEWAY__HEALTH_PORT": str(health),
        "BANKSMAN_GATEWAY__KEYS": keys,
        "BANKSMAN_NATS__URL": f"nats://127.0.0.1:{free_port()}",
        "BANKSMAN_MODELS__DEMO_BASE_URL": f"http://127.0.0.1:{free_port()}/v1",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "banksman.cli", "gateway"),
        env=environment,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES // 2, FILES)),
    )

    async def listens() -> bool:
        with contextlib.suppress(httpx.ConnectError):
            return (await _get(health, "/healthz")).status_code == 200
        return False

    await eventually(listens)
    yield port, health
    process.kill()
    await process.wait()


async def _get(port: int, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as http:
        return await http.get(path, headers=headers, timeout=WAIT_TIMEOUT_S)


@pytest.mark.parametrize("addresses", [ADDRESSES, 1])
async def test_idle_connections_leave_places_for_known_clients_and_health(
    crowded: tuple[int, int], addresses: int
) -> None:
    port, health = crowded
    async with contextlib.AsyncExitStack() as stack:
        known = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=ALICE, verify=False)
        )
        assert (await known.get("/v1/models")).status_code == 200
        flood = [
            await stack.enter_async_context(opened(port, f"127.0.1.{1 + number % addresses}"))
            for number in range(IDLE)
        ]
        for _ in range(3):
            assert (await _get(health, "/healthz")).status_code == 200
            assert (await known.get("/v1/models")).status_code == 200
            assert (await _get(port, "/v1/models", ALICE)).status_code == 200
        still_open = [await is_open(reader) for reader, _ in flood[: IDLE // 2]]
        waiting_health = [
            await stack.enter_async_context(opened(health, f"127.0.1.{1 + number % addresses}"))
            for number in range(FILES)
        ]
        assert (await _get(health, "/healthz")).status_code == 200
        assert (await _get(port, "/v1/models", ALICE)).status_code == 200
        metrics = (await _get(health, "/metrics")).text
    assert not any(still_open)
    assert len(waiting_health) == FILES
    assert 'banksman_ended_connections_total{reason="unknown"}' in metrics


async def half_a_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
    while await is_open(reader) and not reader.at_eof():
        writer.write(b"x")


async def half_a_second_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"}")
    await half_a_header(reader, writer)


async def half_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n")
    while await is_open(reader) and not reader.at_eof():
        writer.write(b" ")


async def nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None: ...


@pytest.mark.parametrize("send", [nothing, half_a_header, half_a_second_header, half_a_body])
async def test_client_that_is_slow_with_a_request_is_disconnected(
    start_gateway: GatewayFactory,
    send: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    async with (
        start_gateway(header_timeout_s=SLOW_S, body_timeout_s=SLOW_S) as gateway,
        opened(gateway.running.port) as (reader, writer),
        asyncio.timeout(WAIT_TIMEOUT_S),
    ):
        await send(reader, writer)
        await ended(reader)


async def test_client_that_does_not_read_a_response_is_disconnected(start_gateway: GatewayFactory) -> None:
    requests = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 200
    health_port = free_port()

    async def ended_for_reading() -> bool:
        metrics = (await _get(health_port, "/metrics")).text
        return 'banksman_ended_connections_total{reason="read"}' in metrics

    async with (
        start_gateway(body_timeout_s=SLOW_S, health_port=health_port) as gateway,
        opened(gateway.running.port) as (_, writer),
        asyncio.timeout(WAIT_TIMEOUT_S),
    ):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(requests)
        await eventually(ended_for_reading)


async def test_steady_body_may_take_longer_than_the_time_limit(start_gateway: GatewayFactory) -> None:
    body = b'{"title": "%s"}' % (b"x" * 12_000)
    head = b"POST /context/conversations HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with (
        start_gateway(body_timeout_s=SLOW_S) as gateway,
        opened(gateway.running.port) as (reader, writer),
    ):
        loop = asyncio.get_running_loop()
        began = loop.time()
        writer.write(head)
        for at in range(0, len(body), 250):
            assert await is_open(reader)
            writer.write(body[at : at + 250])
        took_s = loop.time() - began
        response = await ended(reader)
    assert took_s > 2 * SLOW_S
    assert b"x-request-id" in response


async def test_address_with_many_connections_loses_its_oldest_ones(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            start_gateway(
                keys=(key_of("alice", tenant),),
                max_unknown_connections_per_address=4,
                trusted_proxies=("127.0.0.9/32",),
            )
        )

        async def open_from(address: str, number: int) -> list[Streams]:
            return [
                await stack.enter_async_context(opened(gateway.running.port, address)) for _ in range(number)
            ]

        other, proxy = await open_from("127.0.0.3", 4), await open_from("127.0.0.9", 20)
        flood = await open_from("127.0.0.2", 6)
        refusals = [await ended(reader) for reader, _ in flood[:2]]
        left = [await is_open(reader) for reader, _ in (*flood[2:], *other, *proxy)]
    assert all(refusal.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in refusal for refusal in refusals)
    assert all(left)


async def test_websocket_without_hello_gives_way_and_a_greeted_one_stays(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    async with (
        start_gateway(keys=(key_of("alice", tenant),), max_unknown_connections=3) as gateway,
        gateway.raw() as silent,
        gateway.socket("alice") as greeted,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(6):
            await stack.enter_async_context(opened(gateway.running.port))
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await silent.recv()
        assert (await greeted.request("ping"))["type"] == "pong"
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4429


async def test_one_key_has_at_most_half_of_all_connections(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    keys = (key_of("alice", tenant), key_of("bob", f"{tenant}-2"))
    async with start_gateway(keys=keys, max_connections=8) as gateway, contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(gateway.socket("alice"))
        refused = await _get(gateway.running.port, "/context/conversations", ALICE)
        other = {"authorization": f"Bearer {TOKENS['bob']}"}
        served = await _get(gateway.running.port, "/context/conversations", other)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert served.status_code == 200
