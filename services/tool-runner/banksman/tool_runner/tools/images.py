"""Images of the workspace in the form that vendors of models take."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from dataclasses import dataclass

from banksman.contracts.runner_requests import MAX_FILE_BYTES
from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.tool_runner.tools.converter import ConversionFailed, Converter
from banksman.tool_runner.workspaces.files import PathRefused, read_part, write_whole
from banksman.tool_runner.workspaces.workspace import Workspace

MAX_IMAGE_BYTES = 20 * 1024 * 1024
"""Maximum bytes of an image before it is converted."""
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg"}


@dataclass(frozen=True, slots=True)
class ShownImage:
    data: bytes
    """PNG or JPEG of at most `MAX_FILE_BYTES`."""
    path: str | None
    """Where the workspace keeps it; None if the workspace is full."""
    note: str = ""
    """The size of the original, if the image was reduced now."""


@dataclass(frozen=True, slots=True)
class Images:
    """Converts images. A copy is kept under the digest of the original, which may change or be deleted."""

    converter: Converter

    async def shown(self, workspace: Workspace, path: str) -> ShownImage:
        """Return an image of the workspace; raise `PathRefused` or `ConversionFailed`."""
        content = await asyncio.to_thread(_original, workspace, path)
        digest = hashlib.sha256(content).hexdigest()[:32]
        for suffix in _SUFFIXES.values():
            kept = f"{IMAGES_DIRECTORY}/{digest}{suffix}"
            with contextlib.suppress(PathRefused):
                found = await asyncio.to_thread(
                    read_part, workspace.directory, kept, offset=0, max_bytes=MAX_FILE_BYTES
                )
                return ShownImage(found.data, kept)
        converted = await self.converter.image(content, identity=workspace.identity)
        media_type, _, encoded = converted.text.partition(",")
        data, kept = base64.b64decode(encoded), f"{IMAGES_DIRECTORY}/{digest}{_SUFFIXES[media_type]}"
        await workspace.meter.before_write()
        stored = await asyncio.to_thread(_kept, workspace, kept, data)
        return ShownImage(data, stored, " ".join(converted.warnings))


def _original(workspace: Workspace, path: str) -> bytes:
    part = read_part(workspace.directory, path, offset=0, max_bytes=MAX_IMAGE_BYTES)
    if part.total_bytes > MAX_IMAGE_BYTES:
        raise ConversionFailed(f"it has {part.total_bytes} bytes; at most {MAX_IMAGE_BYTES} can be shown")
    return part.data


def _kept(workspace: Workspace, path: str, data: bytes) -> str | None:
    if workspace.meter.excess() is not None or not workspace.meter.has_room(len(data)):
        return None
    with contextlib.suppress(PathRefused):
        write_whole(workspace.directory, path, data, workspace.identity)
        return path
    return None
