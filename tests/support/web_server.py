"""Web servers of tests: receivers, providers and vendors of other systems."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def web_server(app: web.Application, port: int = 0, **options: Any) -> AsyncGenerator[int]:
    """Serve an application on the loopback interface while the context is open; return its port."""
    runner = web.AppRunner(app, access_log=None, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
