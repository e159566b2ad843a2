"""The files of a workspace as a zip file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from banksman.contracts.calls import FileEntry
from banksman.contracts.errors import BadInput, NotFound
from banksman.gateway.files.files import MAX_ARCHIVE_BYTES, check_size, zipped

CONTENT = {"a.txt": b"one\n" * 100_000, "folder/ä.bin": bytes(range(256)), "empty": b""}


def _entry(path: str, size: int = 1, year: int = 2026) -> FileEntry:
    return FileEntry(path=path, size=size, modified_at=datetime(year, 1, 2, 10, 30, tzinfo=UTC))


async def _read(path: str) -> AsyncIterator[bytes]:
    if path not in CONTENT:
        raise NotFound("file", path)

    async def pieces() -> AsyncIterator[bytes]:
        content = CONTENT[path]
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]

    return pieces()


async def test_all_files_are_in_the_archive_except_one_that_vanished() -> None:
    pieces = [piece async for piece in zipped([*map(_entry, CONTENT), _entry("gone")], _read)]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == CONTENT
        assert archive.infolist()[0].date_time == (2026, 1, 2, 10, 30, 0)
    assert len(pieces) > len(CONTENT)


@pytest.mark.parametrize("year", [1970, 2200])
async def test_a_file_with_any_modification_time_is_archived(year: int) -> None:
    pieces = [piece async for piece in zipped([_entry("empty", year=year)], _read)]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.infolist()[0].date_time[0] == 1980


def test_a_workspace_that_is_too_large_is_refused() -> None:
    check_size([_entry("a", MAX_ARCHIVE_BYTES)])
    with pytest.raises(BadInput):
        check_size([_entry("a", MAX_ARCHIVE_BYTES), _entry("b")])
