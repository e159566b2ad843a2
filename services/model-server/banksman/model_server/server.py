from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from banksman.model_server.models import Models
from banksman.model_server.recorder import Recorder
from banksman.model_server.routes import ModelRoutes
from banksman.model_server.script import Script

_SHUTDOWN_S = 0.5
"""Seconds that a stopping server waits for open responses; then it closes their connections."""


@asynccontextmanager
async def serving(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    recording: bool = False,
    chunk_delay_s: float = 0.0,
    scripts: Mapping[str, Script] | None = None,
) -> AsyncGenerator[tuple[str, ModelRoutes]]:
    """Serve in the running event loop until the context ends; yields the URL and the routes.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.
        recording: Whether requests are recorded and the routes for tests exist.
        chunk_delay_s: Seconds before each chunk that the demo model streams.
        scripts: Scripts to load, by name.

    Raises:
        OSError: the address is in use.
    """
    models = Models(chunk_delay_s)
    for name, script in (scripts or {}).items():
        models.load(name, script)
    routes = ModelRoutes(models, Recorder() if recording else None)
    runner = web.AppRunner(
        routes.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield f"http://{host}:{site.port}", routes
    finally:
        await runner.cleanup()
