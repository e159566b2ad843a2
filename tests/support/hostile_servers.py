"""Servers that send without end, and how long others wait for what reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

BLOCKED_S = 0.25
"""CPU seconds for which the loop may stand still; a bomb of the tests would hold it for seconds."""


class Stalls:
    """Measures for how much CPU time of this thread other work of its event loop waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._used = time.thread_time()
        self.longest = 0.0
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        used = time.thread_time()
        self.longest, self._used = max(self.longest, used - self._used), used
        self._loop.call_soon(self._tick)


@asynccontextmanager
async def raw_server(first: bytes, then: bytes = b"", every_s: float = 0.0) -> AsyncGenerator[str]:
    """Send `first`, and then `then` every `every_s` seconds until the client disconnects."""

    opened: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while not reader.at_eof():
                writer.write(then)
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await reader.read(65_536)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        for writer in opened:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
