"""A proxy before a server that cuts connections at any byte of what the server sends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.proxies import listening

_LINGER = struct.pack("ii", 1, 0)
"""Closing a socket with this option sends RST."""


class CuttingProxy:
    """Forwards bytes in both directions until `cut`, or until as many bytes arrived as `cut_after` allows."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.cuts = 0
        self._server_port = server_port
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._bytes_left: int | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def cut_after(self, received_bytes: int) -> None:
        """Cut the connection once the server has sent this number of further bytes, within a frame or not."""
        self._bytes_left = received_bytes

    def cut(self) -> None:
        """Reset all connections."""
        self._bytes_left = None
        self.cuts += 1
        for link, client in self._links.items():
            client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            client.transport.abort()
            link.cancel()

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Forward one connection until either side ends it."""
        server_in, server_out = await asyncio.open_connection("127.0.0.1", self._server_port)
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = client_out
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._to_server(client_in, server_out))
                both.create_task(self._to_client(server_in, client_out))
        except* OSError:
            pass
        finally:
            del self._links[task]
            for writer in (client_out, server_out):
                writer.close()

    async def close(self) -> None:
        """End all connections."""
        links = tuple(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    async def _to_server(self, client_in: asyncio.StreamReader, server_out: asyncio.StreamWriter) -> None:
        while data := await client_in.read(65_536):
            server_out.write(data)
            await server_out.drain()
        raise ConnectionResetError

    async def _to_client(self, server_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        while data := await server_in.read(65_536):
            if self._bytes_left is not None and len(data) >= self._bytes_left:
                client_out.write(data[: self._bytes_left])
                # Send the bytes before the reset, which discards unsent data.
                await client_out.drain()
                self.cut()
                return
            if self._bytes_left is not None:
                self._bytes_left -= len(data)
            client_out.write(data)
            await client_out.drain()
        raise ConnectionResetError


@asynccontextmanager
async def cutting_proxy(server_port: int) -> AsyncGenerator[CuttingProxy]:
    """Run a proxy to the server on `server_port` during the block."""
    async with listening(CuttingProxy(server_port)) as proxy:
        yield proxy
