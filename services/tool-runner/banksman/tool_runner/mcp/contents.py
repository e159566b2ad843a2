"""What a server returns besides text: images for models that see them, audio and other data as files."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from dataclasses import dataclass, field
from typing import Final

import mcp_types as types

from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.tools.toolbox import store_output
from banksman.tool_runner.workspaces.workspace import Workspace

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass
class ResultContents:
    workspace: Workspace
    secrets: Redaction
    images: list[str] = field(default_factory=list[str])
    """Paths of the images that a model may see."""

    def text_of(self, block: types.ContentBlock) -> str:
        """Return a block as text; one that is not text is kept as a file, which the text names."""
        match block:
            case types.TextContent():
                return block.text
            case types.EmbeddedResource(resource=contents):
                return self.text_of_resource(contents)
            case types.ImageContent() | types.AudioContent():
                return self._kept(block.type, block.mime_type, block.data)
            case types.ResourceLink():
                return (
                    f"[resource {block.uri}: {block.title or block.name} {block.description or ''}".strip()
                    + "]"
                )

    def text_of_resource(self, contents: types.TextResourceContents | types.BlobResourceContents) -> str:
        if isinstance(contents, types.TextResourceContents):
            return contents.text
        media_type = contents.mime_type or "application/octet-stream"
        return self._kept(f"resource {contents.uri}", media_type, contents.blob)

    def _kept(self, kind: str, media_type: str, encoded: str) -> str:
        shown = f"{kind} {media_type}"
        try:
            data = base64.b64decode(encoded)
        except ValueError:
            return f"[{shown}, which is not base64]"
        text = data.decode("latin-1")
        if self.secrets.of(text) != text:
            return f"[{shown}, which contains a secret and is not kept]"
        suffix = mimetypes.guess_extension(media_type, strict=False) or ".bin"
        path = f"{IMAGES_DIRECTORY}/{hashlib.sha256(data).hexdigest()[:32]}{suffix}"
        if store_output(self.workspace, data, path) is None:
            return f"[{shown}, {len(data)} bytes, not kept: the workspace is full]"
        if media_type in _IMAGES:
            self.images.append(path)
        return f"[{shown}, {len(data)} bytes, kept as {path}]"
