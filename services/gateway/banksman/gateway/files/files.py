"""Files of a workspace, one by one or as a zip file, and complete outputs of tool calls."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import zipfile
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import IO, cast
from unicodedata import normalize

from banksman.bus.names import OUTPUTS
from banksman.bus.secrets import opened
from banksman.bus.storage.objects import ObjectBroken, Objects
from banksman.contracts import errors
from banksman.contracts.ids import new_id
from banksman.contracts.paths import portable_path
from banksman.contracts.runner_requests import (
    FileDiff,
    FileEntry,
    FileList,
    FileRead,
    FileReply,
    FileRequest,
    FileWrite,
    UploadEnd,
    WorkspaceDiff,
)
from banksman.contracts.wire import Stored
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.runs import Runs
from banksman.runs.runners.placement import Placements

SLICE_BYTES = 512 * 1024
MAX_PATH_CHARS = 4_096
MAX_LISTED = 10_000
MAX_PAGES = 10
"""Maximum pages of one list. A page has at most 768 KiB: only very long paths need more than two."""
MAX_ARCHIVE_BYTES = 512 * 1024 * 1024
"""Maximum bytes of all files together. The files of a larger workspace are downloaded one by one."""
RETRY_AFTER_S = 5.0
_FAULTS: dict[str, type[errors.Refused]] = {
    fault.code: fault
    for fault in (errors.Overloaded, errors.Unavailable, errors.StorageFull, errors.NotReady)
}
"""The errors of a runner that are not the client's fault."""
FIRST_YEAR, LAST_YEAR = 1980, 2107
_FAST = 1
"""Level of compression: a workspace is mostly text, and the lowest level achieves most of the compression."""
Read = Callable[[str], Awaitable[AsyncIterator[bytes]]]
"""Returns the content of a path in pieces, or raises `NotFound`."""


class StoredFile(Stored):
    """A file that was uploaded."""

    path: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ConversationFiles:
    placements: Placements
    outputs: Objects
    conversations: Conversations
    runs: Runs

    async def workspace(self, caller: Caller, conversation_id: str) -> ConversationWorkspace:
        record = await self.conversations.get(caller.tenant, conversation_id)
        return ConversationWorkspace(self.placements, caller.tenant, conversation_id, record.title)

    async def output(self, caller: Caller, run_id: str, tool_call_id: str) -> bytes:
        """Return the complete output of a call; `NotFound` if its result is complete."""
        result = await self.runs.result(caller.tenant, run_id, tool_call_id)
        if result.output_ref is None:
            raise errors.NotFound("longer output of tool call", result.tool_call_id)
        data = await self.outputs.get(result.output_ref)
        if result.output_key is None:
            return data
        content = await asyncio.to_thread(opened, data, result.output_key, result.output_ref)
        if content is None:
            raise ObjectBroken(OUTPUTS, result.output_ref)
        return content


@dataclass(frozen=True, slots=True)
class ConversationWorkspace:
    """Reads and writes one workspace through the runner that owns it."""

    placements: Placements
    tenant: str
    conversation_id: str
    title: str

    async def list(self, path: str) -> tuple[FileEntry, ...]:
        """Return the first files below a path, sorted by path, at most 10,000 and about 8 MiB as JSON."""
        return (await self._listed(path))[0]

    async def page(self, path: str, *, after: str, limit: int) -> tuple[tuple[FileEntry, ...], bool]:
        """Return the first files below a path that sort after a path, and whether more follow."""
        reply = await self.request(path, FileList(path=path, after=after, limit=limit))
        return reply.items, reply.more

    async def _listed(self, path: str) -> tuple[tuple[FileEntry, ...], bool]:
        found: list[FileEntry] = []
        for _ in range(MAX_PAGES):
            after = found[-1].path if found else ""
            items, more = await self.page(path, after=after, limit=MAX_LISTED - len(found))
            found += items
            if not items or not more or len(found) >= MAX_LISTED:
                return tuple(found), more
        return tuple(found), True

    async def read(self, path: str) -> AsyncIterator[bytes]:
        """Return a file's bytes in pieces; the first piece is fetched before this returns."""
        first = await self.slice(path, 0)

        async def pieces() -> AsyncIterator[bytes]:
            reply, offset = first, 0
            while True:
                data = base64.b64decode(reply.data_base64 or "")
                if data:
                    yield data
                offset += len(data)
                if not reply.more or not data:
                    return
                reply = await self.slice(path, offset)

        return pieces()

    async def archive(self) -> AsyncIterator[bytes]:
        """Return all files as a zip file in pieces; `BadInput` for over 10,000 files or 512 MiB."""
        files, more = await self._listed("")
        if more:
            raise errors.BadInput("workspace", f"more than {len(files)} files", f"at most {MAX_LISTED} files")
        check_size(files)
        return zipped(files, self.read)

    async def write(self, path: str, source: AsyncIterable[bytes]) -> int:
        """Store a file, replacing an existing file of the same path, and return its size in bytes."""
        upload = new_id("u")
        try:
            return await self._upload(path, upload, source)
        except BaseException:
            # The client has gone, or the runner refused a slice.
            with contextlib.suppress(errors.BanksmanError):
                await self.request(path, UploadEnd(upload=upload))
            raise

    async def _upload(self, path: str, upload: str, source: AsyncIterable[bytes]) -> int:
        offset, buffer = 0, bytearray()
        async for piece in source:
            buffer += piece
            while len(buffer) > SLICE_BYTES:
                data = bytes(buffer[:SLICE_BYTES])
                del buffer[:SLICE_BYTES]
                await self.put_slice(path, upload, offset, data, last=False)
                offset += len(data)
        await self.put_slice(path, upload, offset, bytes(buffer), last=True)
        return offset + len(buffer)

    async def diff(self, *, since: str, path: str) -> WorkspaceDiff:
        """Return what has changed since a run began, or since the workspace began; only `path` if given."""
        reply = await self.request(path, FileDiff(since=since, path=path))
        return reply.diff or WorkspaceDiff()

    async def slice(self, path: str, offset: int) -> FileReply:
        return await self.request(path, FileRead(path=path, offset=offset, max_bytes=SLICE_BYTES))

    async def put_slice(self, path: str, upload: str, offset: int, data: bytes, *, last: bool) -> None:
        """Store a slice of an upload; the last slice replaces the file."""
        encoded = base64.b64encode(data).decode()
        request = FileWrite(path=path, upload=upload, offset=offset, data_base64=encoded, last=last)
        await self.request(path, request)

    async def request(self, path: str, request: FileRequest) -> FileReply:
        """Return the reply of the runner; raise its refusal, which is about `path`."""
        reply = await self.placements.files(self.tenant, self.conversation_id, request)
        if reply.error is None:
            return reply
        if (fault := _FAULTS.get(reply.code or "")) is not None:
            raise fault(reply.error, retry_after_s=RETRY_AFTER_S)
        if reply.code == errors.ErrorCode.TOO_LARGE:
            raise errors.TooLarge(reply.error)
        # A runner reports an error of the path as text, without a code.
        if "not found" in reply.error.lower() or "no such" in reply.error.lower():
            raise errors.NotFound("file", path)
        # The runner's text is a sentence about the path.
        raise errors.BadInput("path", path, f"is refused: {reply.error.removeprefix(f'{path}: ')}")


def check_length(path: str) -> str:
    if len(path) > MAX_PATH_CHARS:
        raise ValueError(f"at most {MAX_PATH_CHARS} characters")
    return path


def check_size(files: Sequence[FileEntry]) -> None:
    """Raise `BadInput` if the files are too large for an archive."""
    size = sum(file.size for file in files)
    if size > MAX_ARCHIVE_BYTES:
        raise errors.BadInput(
            "workspace", f"{size} bytes", f"files of at most {MAX_ARCHIVE_BYTES} bytes together"
        )


async def zipped(files: Sequence[FileEntry], read: Read) -> AsyncIterator[bytes]:
    """Yield a zip file with the files that still exist. One piece of one file is in memory at a time."""
    written, names = _Written(), _Names()
    # For an output that cannot seek, zipfile needs only `write` and `flush`.
    archive = zipfile.ZipFile(cast(IO[bytes], written), "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST)
    for file in files:
        try:
            pieces = await read(file.path)
        except errors.NotFound:
            continue  # A command deleted it meanwhile.
        entry = zipfile.ZipInfo(names.unused(file.path), _zip_time(file))
        entry.compress_type = zipfile.ZIP_DEFLATED
        # A command may write the file meanwhile, so its size is not known before the end.
        with archive.open(entry, "w", force_zip64=True) as target:
            async for piece in pieces:
                await asyncio.to_thread(target.write, piece)
                yield written.take()
    archive.close()
    yield written.take()


def _zip_time(file: FileEntry) -> tuple[int, int, int, int, int, int]:
    """Return the modification time, or a substitute: commands may set years that zip files cannot state."""
    at = file.modified_at
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        return (FIRST_YEAR, 1, 1, 0, 0, 0)
    return (at.year, at.month, at.day, at.hour, at.minute, at.second)


class _Names:
    """Names of entries; those that are equal on other systems are numbered."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def unused(self, path: str) -> str:
        plain = found = portable_path(path)
        while (key := normalize("NFC", found).casefold()) in self._numbers:
            # Continues where the last equal name ended: thousands of names may be equal.
            same = normalize("NFC", plain).casefold()
            self._numbers[same] += 1
            found = f"{plain} ({self._numbers[same]})"
        self._numbers[key] = 1
        return found


class _Written:
    """Buffers written bytes until `take` returns them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: `take` returns all written bytes."""

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken
