"""The model server as a separate process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from banksman.contracts.validation_errors import bad_input
from banksman.model_server.script import Script, ScriptName
from banksman.model_server.server import serving
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
    """Serve with these settings until SIGINT or SIGTERM; see `run`."""
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
