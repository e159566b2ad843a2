"""A proxy between a process and its broker that holds bytes and delivers them late: a partition that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Literal

from tests.support.chaos.fleet import Fleet, Member
from tests.support.proxies import listening

Direction = Literal["in", "out"]
"""
in   to the process
out  from the process
"""
BOTH: tuple[Direction, ...] = ("in", "out")


class HeldWire:
    """Forwards the bytes of every connection of one process, or holds them."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._open: dict[Direction, asyncio.Event] = {way: asyncio.Event() for way in BOTH}
        self._links: set[asyncio.Task[None]] = set()
        self.release()

    @property
    def url(self) -> str:
        """The address for the process."""
        return f"nats://127.0.0.1:{self.port}"

    def hold(self, ways: Collection[Direction]) -> None:
        """Hold the bytes of these directions. Neither side notices, as with packets that are lost."""
        for way in ways:
            self._open[way].clear()

    def release(self) -> None:
        """Deliver the held bytes, also to a connection whose other side has given up meanwhile."""
        for way in self._open.values():
            way.set()

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        """Forward one connection until both sides have ended it."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        with contextlib.suppress(OSError):
            server_in, server_out = await asyncio.open_connection("127.0.0.1", self._server_port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward("out", client_in, server_out))
                both.create_task(self._forward("in", server_in, client_out))

    async def close(self) -> None:
        """End every connection."""
        for link in tuple(self._links):
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    async def _forward(self, way: Direction, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65_536):
                    await self._open[way].wait()
                    to.write(data)
                    await to.drain()
            # The end of a connection is held too.
            await self._open[way].wait()
        finally:
            to.close()


@asynccontextmanager
async def held_wire(server_port: int) -> AsyncGenerator[HeldWire]:
    """Run a proxy to the server on `server_port` during the block."""
    async with listening(HeldWire(server_port)) as wire:
        yield wire


@asynccontextmanager
async def held_wires(fleet: Fleet, *names: str) -> AsyncGenerator[dict[str, HeldWire]]:
    """Put a proxy between each of these members and the broker. The fleet must not have started."""
    async with AsyncExitStack() as stack:
        wires: dict[str, HeldWire] = {}
        for name in names:
            wires[name] = await stack.enter_async_context(held_wire(fleet.nats.port))
            _route(fleet[name], fleet.nats.url, wires[name].url)
        yield wires


def _route(member: Member, url: str, over: str) -> None:
    environment = {key: over if value == url else value for key, value in member.spec.environment.items()}
    member.spec = replace(member.spec, environment=environment)
