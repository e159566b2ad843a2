"""Files of a workspace, and complete outputs of tool calls."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterable, AsyncIterator

from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS
from banksman.bus.secrets.sealing import opened
from banksman.bus.storage.objects import ObjectBroken, Objects
from banksman.contracts.calls import (
    FileDelete,
    FileEntry,
    FileList,
    FileRead,
    FileReply,
    FileRequest,
    FileWrite,
)
from banksman.contracts.errors import BadInput, NotFound
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult
from banksman.gateway.files.archives import check_size, zipped
from banksman.runs.runners.placement import Placements

SLICE_BYTES = 512 * 1024
MAX_LISTED = 10_000
MAX_PAGES = 10
"""Maximum pages of one list. A page has at most 768 KiB: only very long paths need more than two."""


class Files:
    """Reads and writes workspaces through the runners that own them."""

    def __init__(self, placements: Placements, outputs: Bus) -> None:
        self._placements = placements
        self._outputs = Objects(outputs, OUTPUTS)

    async def list(self, tenant: str, conversation_id: str, path: str) -> tuple[FileEntry, ...]:
        """Return the first files below a path, sorted by path, at most 10,000 and about 8 MiB as JSON."""
        return (await self._listed(tenant, conversation_id, path))[0]

    async def page(
        self, tenant: str, conversation_id: str, path: str, *, after: str, limit: int
    ) -> tuple[tuple[FileEntry, ...], bool]:
        """Return the first files below a path that sort after a path, and whether more follow."""
        request = FileList(path=path, after=after, limit=limit)
        reply = await self._request(tenant, conversation_id, path, request)
        # A runner of an older version ignores `after`.
        return tuple(file for file in reply.items if file.path > after), reply.more

    async def _listed(
        self, tenant: str, conversation_id: str, path: str
    ) -> tuple[tuple[FileEntry, ...], bool]:
        found: list[FileEntry] = []
        for _ in range(MAX_PAGES):
            after = found[-1].path if found else ""
            left = MAX_LISTED - len(found)
            items, more = await self.page(tenant, conversation_id, path, after=after, limit=left)
            found += items
            if not items or not more or len(found) >= MAX_LISTED:
                return tuple(found), more
        return tuple(found), True

    async def read(self, tenant: str, conversation_id: str, path: str) -> AsyncIterator[bytes]:
        """Return a file's bytes in pieces; the first piece is fetched before this returns.

        Raises:
            NotFound: No such file.
            BadInput: The file cannot be read.
        """
        first = await self.slice(tenant, conversation_id, path, 0)

        async def pieces() -> AsyncIterator[bytes]:
            reply, offset = first, 0
            while True:
                data = base64.b64decode(reply.data_base64 or "")
                if data:
                    yield data
                offset += len(data)
                if not reply.more or not data:
                    return
                reply = await self.slice(tenant, conversation_id, path, offset)

        return pieces()

    async def archive(self, tenant: str, conversation_id: str) -> AsyncIterator[bytes]:
        """Return all files, at most 10,000, as a zip file in pieces.

        Raises:
            BadInput: There are more than 10,000 files, or they have more than 512 MiB.
        """
        files, more = await self._listed(tenant, conversation_id, "")
        if more:
            raise BadInput("workspace", f"more than {len(files)} files", f"at most {MAX_LISTED} files")
        check_size(files)
        return zipped(files, lambda path: self.read(tenant, conversation_id, path))

    async def write(self, tenant: str, conversation_id: str, path: str, source: AsyncIterable[bytes]) -> int:
        """Store a file, replacing an existing file of the same path, and return its size in bytes."""
        upload, offset, buffer = new_id("u"), 0, bytearray()
        async for piece in source:
            buffer += piece
            while len(buffer) > SLICE_BYTES:
                data = bytes(buffer[:SLICE_BYTES])
                del buffer[:SLICE_BYTES]
                await self.put_slice(tenant, conversation_id, path, upload, offset, data, last=False)
                offset += len(data)
        await self.put_slice(tenant, conversation_id, path, upload, offset, bytes(buffer), last=True)
        return offset + len(buffer)

    async def delete(self, tenant: str, conversation_id: str, path: str) -> None:
        """Delete a file.

        Raises:
            NotFound: No such file.
        """
        await self._request(tenant, conversation_id, path, FileDelete(path=path))

    async def output(self, result: ToolResult) -> bytes:
        """Return the complete output of a call whose result was truncated.

        Raises:
            NotFound: The call has no complete output besides its result.
        """
        if result.output_ref is None:
            raise NotFound("longer output of tool call", result.tool_call_id)
        data = await self._outputs.get(result.output_ref)
        if result.output_key is None:
            return data
        content = await asyncio.to_thread(opened, data, result.output_key, result.output_ref)
        if content is None:
            raise ObjectBroken(OUTPUTS, result.output_ref)
        return content

    async def slice(self, tenant: str, conversation_id: str, path: str, offset: int) -> FileReply:
        """Return up to `SLICE_BYTES` of a file's bytes.

        Raises:
            NotFound: No such file.
            BadInput: The file cannot be read.
        """
        request = FileRead(path=path, offset=offset, max_bytes=SLICE_BYTES)
        return await self._request(tenant, conversation_id, path, request)

    async def put_slice(
        self,
        tenant: str,
        conversation_id: str,
        path: str,
        upload: str,
        offset: int,
        data: bytes,
        *,
        last: bool,
    ) -> None:
        """Store a slice of an upload; the last slice replaces the file.

        Raises:
            BadInput: The path is invalid, or the slices before this one are missing.
        """
        request = FileWrite(
            path=path,
            upload=upload,
            offset=offset,
            data_base64=base64.b64encode(data).decode(),
            last=last,
        )
        await self._request(tenant, conversation_id, path, request)

    async def _request(self, tenant: str, conversation_id: str, path: str, request: FileRequest) -> FileReply:
        reply = await self._placements.files(tenant, conversation_id, request)
        if reply.error is None:
            return reply
        # A runner reports an error as text, without a code.
        if "not found" in reply.error.lower() or "no such" in reply.error.lower():
            raise NotFound("file", path)
        # The runner's text is a sentence about the path.
        raise BadInput("path", path, f"is refused: {reply.error.removeprefix(f'{path}: ')}")
