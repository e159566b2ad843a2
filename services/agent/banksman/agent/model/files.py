"""The files of the workspace that a model request contains: images and PDF documents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import OrderedDict
from dataclasses import dataclass, field

from banksman.agent.protocols.base import LoadedFile
from banksman.contracts.errors import BanksmanError
from banksman.contracts.messages import is_document
from banksman.contracts.runner_requests import FileRead
from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.runs.runners.placement import Placements

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a document. Bedrock takes 4.5 MB, other vendors more."""
LOAD_S = 20.0
"""Maximum seconds for loading one file; afterwards the request states that it is missing."""
MAX_CACHED_BYTES = 32 * 1024 * 1024

_SIGNATURES = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"%PDF-", "application/pdf"))


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """Loads files from runners, and keeps the newest ones of this process."""

    placements: Placements
    _cached: OrderedDict[tuple[str, ...], LoadedFile] = field(
        default_factory=OrderedDict[tuple[str, ...], LoadedFile]
    )

    async def load(self, tenant: str, conversation: str, message: str, path: str) -> LoadedFile | None:
        """Return a file of a message; None if it is missing, too large, or cannot be loaded now.

        It is loaded once for its message: a file that is replaced later belongs to later messages.
        """
        key = (tenant, conversation, message, path)
        found = self._cached.get(key)
        if found is None:
            with contextlib.suppress(BanksmanError, TimeoutError):
                async with asyncio.timeout(LOAD_S):
                    found = await self._loaded(tenant, conversation, path)
        if found is not None:
            self._cached[key] = found
            self._cached.move_to_end(key)
            while sum(len(one.base64) for one in self._cached.values()) > MAX_CACHED_BYTES:
                self._cached.popitem(last=False)
        return found

    async def _loaded(self, tenant: str, conversation: str, path: str) -> LoadedFile | None:
        is_original = not path.startswith(f"{IMAGES_DIRECTORY}/") and not is_document(path)
        data = b""
        while True:
            request = FileRead(path=path[:4096], offset=len(data), image=is_original)
            reply = await self.placements.files(tenant, conversation, request)
            piece = base64.b64decode(reply.data_base64 or "")
            data += piece
            if not piece or (reply.total_bytes or 0) > MAX_DOCUMENT_BYTES:
                return None
            if not reply.more:
                types = (media_type for start, media_type in _SIGNATURES if data.startswith(start))
                media_type = next(types, None)
                return None if media_type is None else LoadedFile(media_type, base64.b64encode(data).decode())
