"""A proxy before a server whose bytes arrive late, as over a slow network or from a busy server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.polling import scripted_delay
from tests.support.proxies import listening


@dataclass
class SlowWire:
    """Forwards bytes in both directions; those of the server arrive `delay_s` seconds late, in order."""

    server_port: int
    delay_s: float = 0.0
    port: int = 0
    _links: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Forward one connection until either side ends it."""
        server_in, server_out = await asyncio.open_connection("127.0.0.1", self.server_port)
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_forward(client_in, server_out))
                both.create_task(self._hold(server_in, late))
                both.create_task(_release(late, client_out))
        except* OSError:
            pass
        finally:
            self._links.discard(task)
            for writer in (client_out, server_out):
                writer.close()

    async def close(self) -> None:
        """End all connections."""
        links = tuple(self._links)
        for link in links:
            link.cancel()
        if links:
            await asyncio.wait(links)

    async def _hold(self, source: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        clock = asyncio.get_running_loop().time
        while data := await source.read(65_536):
            late.put_nowait((clock() + self.delay_s, data))
        raise ConnectionResetError


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()
    raise ConnectionResetError


async def _release(late: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due, data = await late.get()
        await scripted_delay(max(0.0, due - clock()))
        target.write(data)
        await target.drain()


@asynccontextmanager
async def slow_wire(server_port: int) -> AsyncGenerator[SlowWire]:
    """Run a proxy to the server on `server_port` during the block."""
    async with listening(SlowWire(server_port)) as wire:
        yield wire
