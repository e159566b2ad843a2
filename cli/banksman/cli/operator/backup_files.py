"""The content of a backup, and how it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.bus import names
from banksman.cli.operator.stream_snapshots import CHUNK_BYTES
from banksman.contracts.errors import BadInput

MANIFEST = "manifest.json"
_FORMAT = 1
DERIVED_FROM_LOGS = (names.kv_stream(names.HEADS), names.kv_stream(names.DAMAGED))
"""Streams about the state of the stored logs. A restore replaces the logs, so these start empty."""
NOT_BACKED_UP = (names.kv_stream(names.RUNNERS), names.ADVISORIES, *DERIVED_FROM_LOGS)
"""Streams that a backup omits: derived ones, leases (they expire within seconds), the server's advisories."""


class SavedStream(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    account: str
    name: str
    file: str
    bytes: int
    sha256: str
    messages: int
    config: dict[str, Any]
    state: dict[str, Any]
    """State of the stream at the snapshot; the restore request must contain it."""


class Manifest(BaseModel):
    """Content of a backup. It is written last: a backup without it is incomplete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = _FORMAT
    made_by: str
    began_at: datetime
    """Everything that was accepted before this time is in the backup."""
    ended_at: datetime
    streams: tuple[SavedStream, ...]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest; raise `BadInput` if it or a file of the backup is missing or altered."""
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadInput(str(directory / MANIFEST), None, "the manifest of a complete backup") from error
    for stream in manifest.streams:
        file = directory / stream.file
        digest = hashlib.sha256()
        for chunk in file_chunks(file):
            digest.update(chunk)
        if digest.hexdigest() != stream.sha256:
            raise BadInput(str(file), None, f"{stream.bytes} bytes with SHA-256 {stream.sha256}")
    return manifest


def file_chunks(file: Path) -> Iterator[bytes]:
    """Yield a file in pieces of `CHUNK_BYTES`; raise `BadInput` if it does not exist."""
    if not file.is_file():
        raise BadInput(str(file), None, "the file that the manifest names")
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
