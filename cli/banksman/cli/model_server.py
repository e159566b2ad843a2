from __future__ import annotations

from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from banksman.contracts.wire import bad_input
from banksman.model_server import Script
from banksman.model_server import serve as serve_models
from banksman.model_server.script import ScriptName
from banksman.runtime.settings import Section, ServiceSettings, load

_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])


class ModelServerSection(Section):
    """Where the model server listens, and how fast its demo model writes."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free one."""
    chunk_delay_s: float = Field(default=0.015, ge=0)
    """Seconds before each chunk that the demo model streams."""


class ModelServerSettings(ServiceSettings):
    """Settings of the model server."""

    model_server: ModelServerSection = ModelServerSection()


def serve(host: str | None, port: int | None, *, recording: bool, scripts: Path | None) -> int:
    """Serve until stopped; options win over settings. Returns the exit code.

    Raises:
        BadInput: a setting or a script is wrong.
        OSError: the port is taken, or the file of scripts cannot be read.
    """
    settings = load(ModelServerSettings).model_server
    serve_models(
        host or settings.host,
        settings.port if port is None else port,
        recording=recording,
        chunk_delay_s=settings.chunk_delay_s,
        scripts=_read(scripts) if scripts else None,
    )
    return 0


def _read(file: Path) -> dict[str, Script]:
    try:
        return _SCRIPTS.validate_json(file.read_bytes())
    except ValidationError as error:
        raise bad_input(error, str(file)) from error
