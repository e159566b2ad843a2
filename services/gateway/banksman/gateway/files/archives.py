"""The files of a workspace as one zip file, created while it is sent."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import IO, cast

from banksman.contracts.calls import FileEntry
from banksman.contracts.errors import BadInput, NotFound

MAX_ARCHIVE_BYTES = 512 * 1024 * 1024
"""Maximum bytes of all files together. The files of a larger workspace are downloaded one by one."""
FIRST_YEAR, LAST_YEAR = 1980, 2107
_FAST = 1
"""Level of compression: a workspace is mostly text, and the lowest level achieves most of the compression."""

Read = Callable[[str], Awaitable[AsyncIterator[bytes]]]
"""Returns the content of a path in pieces, or raises `NotFound`."""


def check_size(files: Sequence[FileEntry]) -> None:
    """Refuse a workspace that is too large for an archive.

    Raises:
        BadInput: The files have more than 512 MiB.
    """
    size = sum(file.size for file in files)
    if size > MAX_ARCHIVE_BYTES:
        raise BadInput("workspace", f"{size} bytes", f"files of at most {MAX_ARCHIVE_BYTES} bytes together")


async def zipped(files: Sequence[FileEntry], read: Read) -> AsyncIterator[bytes]:
    """Yield a zip file with the files that still exist. One piece of one file is in memory at a time."""
    written = _Written()
    # For an output that cannot seek, zipfile needs only `write` and `flush`.
    archive = zipfile.ZipFile(cast(IO[bytes], written), "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST)
    for file in files:
        try:
            pieces = await read(file.path)
        except NotFound:
            continue  # A command deleted it meanwhile.
        entry = zipfile.ZipInfo(file.path, _zip_time(file))
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
