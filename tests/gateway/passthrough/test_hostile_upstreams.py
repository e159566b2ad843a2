"""Upstreams that send without end: the gateway gives them up before they fill its memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.gateway.passthrough.conftest import StartPassing

from banksman.gateway.settings import Upstream

MIB = 1024 * 1024


class Endless:
    """A server whose list of models has no end."""

    def __init__(self) -> None:
        self.listed: asyncio.Queue[int] = asyncio.Queue()
        """The bytes of each list that its reader broke off."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent, piece = 0, bytes(MIB)
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        self.listed.put_nowait(sent)
        writer.close()


@pytest.fixture
async def endless() -> Endless:
    return Endless()


async def test_a_list_of_models_without_end_is_read_to_its_limit(
    endless: Endless, start_passing: StartPassing
) -> None:
    async with endless.running() as url, start_passing(Upstream(name="evil", base_url=url)):
        async with asyncio.timeout(20):
            assert await endless.listed.get() < 64 * MIB
