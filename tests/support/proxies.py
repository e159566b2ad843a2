"""Runs the proxies of tests, which fault the connections that they forward."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class Proxy(Protocol):
    port: int

    async def link(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, /) -> None:
        """Forward one connection."""
        ...

    async def close(self) -> None: ...


P = TypeVar("P", bound=Proxy)


@asynccontextmanager
async def listening(proxy: P) -> AsyncGenerator[P]:
    """Accept connections for a proxy on a free port during the block, and set its `port`."""
    listener = await asyncio.start_server(proxy.link, "127.0.0.1", 0)
    proxy.port = int(listener.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.close()
        with contextlib.suppress(OSError):
            await listener.wait_closed()
