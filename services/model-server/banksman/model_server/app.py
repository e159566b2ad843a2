"""The model server as a separate process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from banksman.contracts.validation_errors import bad_input
from banksman.model_server.models import Models
from banksman.model_server.recorder import Recorder
from banksman.model_server.routes import ModelRoutes
from banksman.model_server.script import Script, ScriptName
from banksman.model_server.settings import ModelServerSection, ModelServerSettings
from banksman.runtime import event_loop
from banksman.runtime.settings import load

_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])


def run(
    host: str | None = None,
    port: int | None = None,
    *,
    recording: bool = False,
    scripts: Path | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM and return the exit code. Arguments override settings.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.
        recording: Record requests and serve the routes for tests.
        scripts: JSON file with an object that maps names to scripts.

    Raises:
        BadInput: a setting or a script is invalid.
        OSError: the port is in use, or the scripts cannot be read.
    """
    given = {"host": host, "port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load(ModelServerSettings).model_server.model_copy(update=chosen)
    serve(settings, scripts, recording=recording)
    return 0


def serve(settings: ModelServerSection, scripts: Path | None, *, recording: bool) -> None:
    event_loop.run(_serve(settings, _read(scripts) if scripts else {}, recording=recording))


async def _serve(settings: ModelServerSection, scripts: Mapping[str, Script], *, recording: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(
        host=settings.host,
        port=settings.port,
        recording=recording,
        chunk_delay_s=settings.chunk_delay_s,
        scripts=scripts,
    ) as (url, _):
        sys.stdout.write(f"model server ready at {url}\n")
        sys.stdout.flush()
        await stop.wait()


def _read(file: Path) -> dict[str, Script]:
    try:
        return _SCRIPTS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise bad_input(error, str(file)) from error


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
