"""The files of a workspace as one zip file, made while it is sent."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import IO, cast

from banksman.contracts.calls import FileEntry
from banksman.contracts.errors import BadInput, NotFound

MAX_ARCHIVE_BYTES = 512 * 1024 * 1024
"""Bytes of all files together. The files of a larger workspace are downloaded one by one."""
FIRST_YEAR, LAST_YEAR = 1980, 2107
_FAST = 1
"""Level of compression: a workspace is mostly text, and the first level takes the most of it."""

Read = Callable[[str], Awaitable[AsyncIterator[bytes]]]
"""Returns the content of a path in pieces, or raises `NotFound`."""


def check_size(files: Sequence[FileEntry]) -> None:
    """Refuse a workspace that is too large for an archive.

    Raises:
        BadInput: Its files have more than 512 MiB.
    """
    size = sum(file.size for file in files)
    if size > MAX_ARCHIVE_BYTES:
        raise BadInput("workspace", f"{size} bytes", f"files of at most {MAX_ARCHIVE_BYTES} bytes together")


async def zipped(files: Sequence[FileEntry], read: Read) -> AsyncIterator[bytes]:
    """Yield a zip file with the files that still exist. One piece of one file is in memory at a time."""
    written = _Written()
    # zipfile needs `write` and `flush` alone of a file that cannot seek.
    archive = zipfile.ZipFile(cast(IO[bytes], written), "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST)
    for file in files:
        try:
            pieces = await read(file.path)
        except NotFound:
            continue  # A command deleted it meanwhile.
        entry = zipfile.ZipInfo(file.path, _moment(file))
        entry.compress_type = zipfile.ZIP_DEFLATED
        # The size is not known before the end: a command may write the file meanwhile.
        with archive.open(entry, "w", force_zip64=True) as target:
            async for piece in pieces:
                await asyncio.to_thread(target.write, piece)
                yield written.take()
    archive.close()
    yield written.take()


def _moment(file: FileEntry) -> tuple[int, int, int, int, int, int]:
    """Return when a file was changed, within the years that zip files can state; commands set any."""
    at = file.modified_at
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        return (FIRST_YEAR, 1, 1, 0, 0, 0)
    return (at.year, at.month, at.day, at.hour, at.minute, at.second)


class _Written:
    """Collects what is written until it is taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Return; nothing is held back."""

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken
