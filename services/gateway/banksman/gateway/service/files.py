"""Files of a workspace and whole outputs of calls, as clients read and write them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterable, AsyncIterator

from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS
from banksman.bus.objects import Objects
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
from banksman.runs.placement import Placements

SLICE_BYTES = 512 * 1024
MAX_LISTED = 10_000


class Files:
    """The workspaces, through the runners that own them."""

    def __init__(self, placements: Placements, outputs: Bus) -> None:
        self._placements = placements
        self._outputs = Objects(outputs, OUTPUTS)

    async def list(self, tenant: str, conversation_id: str, path: str) -> tuple[FileEntry, ...]:
        """The files below a path."""
        request = FileList(path=path, limit=MAX_LISTED)
        return (await self._ask(tenant, conversation_id, path, request)).items

    async def read(self, tenant: str, conversation_id: str, path: str) -> AsyncIterator[bytes]:
        """A file's bytes; the first piece is asked for when this is awaited.

        Raises:
            NotFound: there is no such file, or it may not be read.
        """
        first = await self._slice(tenant, conversation_id, path, 0)

        async def pieces() -> AsyncIterator[bytes]:
            answer, offset = first, 0
            while True:
                data = base64.b64decode(answer.data_base64 or "")
                if data:
                    yield data
                offset += len(data)
                if not answer.more or not data:
                    return
                answer = await self._slice(tenant, conversation_id, path, offset)

        return pieces()

    async def write(self, tenant: str, conversation_id: str, path: str, source: AsyncIterable[bytes]) -> int:
        """Store a file in the place of any of that name; returns its size."""
        upload, offset, buffer = new_id("u"), 0, bytearray()
        async for piece in source:
            buffer += piece
            while len(buffer) > SLICE_BYTES:
                data = bytes(buffer[:SLICE_BYTES])
                del buffer[:SLICE_BYTES]
                await self._put(tenant, conversation_id, path, upload, offset, data, last=False)
                offset += len(data)
        await self._put(tenant, conversation_id, path, upload, offset, bytes(buffer), last=True)
        return offset + len(buffer)

    async def delete(self, tenant: str, conversation_id: str, path: str) -> None:
        """Remove a file.

        Raises:
            NotFound: there is no such file.
        """
        await self._ask(tenant, conversation_id, path, FileDelete(path=path))

    async def output(self, result: ToolResult) -> bytes:
        """The whole output of a call.

        Raises:
            NotFound: all of it is in its result.
        """
        if result.output_ref is None:
            raise NotFound("longer output of tool call", result.tool_call_id)
        return await self._outputs.get(result.output_ref)

    async def _slice(self, tenant: str, conversation_id: str, path: str, offset: int) -> FileReply:
        request = FileRead(path=path, offset=offset, max_bytes=SLICE_BYTES)
        return await self._ask(tenant, conversation_id, path, request)

    async def _put(
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
        request = FileWrite(
            path=path,
            upload=upload,
            offset=offset,
            data_base64=base64.b64encode(data).decode(),
            last=last,
        )
        await self._ask(tenant, conversation_id, path, request)

    async def _ask(self, tenant: str, conversation_id: str, path: str, request: FileRequest) -> FileReply:
        answer = await self._placements.files(tenant, conversation_id, request)
        if answer.error is None:
            return answer
        if "not found" in answer.error.lower() or "no such" in answer.error.lower():
            raise NotFound("file", path)
        raise BadInput("path", path, answer.error)
