"""Requests to monitoring addresses that fail say why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from banksman.cli.machine import free_port
from banksman.runtime.http_get import MAX_BYTES, http_get
from tests.support.hostile_servers import raw_server

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"INFO {}\r\n")
    writer.close()


async def unfinished(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (silent, "did not respond within 0.2 s"),
        (no_http, "cannot be reached: not an HTTP response: b'INFO {}\\r\\n'"),
        (unfinished, "cannot be reached: not an HTTP response: b'HTTP/1.1 200 OK\\r\\nContent-Le'"),
    ],
)
async def test_error_names_the_address_and_the_reason(serve: Serve, reason: str) -> None:
    async with serving(serve) as url:
        with pytest.raises(OSError) as failed:
            await http_get(f"{url}/varz?key=secret", timeout_s=0.2)
    assert str(failed.value) == f"{url}/varz {reason}"


async def test_a_response_without_end_is_read_to_its_limit() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1024 * 1024)) as url:
        with pytest.raises(OSError, match=f"more than {MAX_BYTES} bytes"):
            await http_get(f"{url}/varz", timeout_s=30)


async def test_error_of_a_closed_port_names_the_address_and_the_reason() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(OSError) as failed:
        await http_get(f"{url}/varz", timeout_s=5)
    assert str(failed.value).startswith(f"{url}/varz cannot be reached: ")
    assert "Connect" in str(failed.value)
