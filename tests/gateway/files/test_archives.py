"""The files of a workspace as a zip file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from banksman.contracts.errors import BadInput, NotFound
from banksman.contracts.paths import portable_path
from banksman.contracts.runner_requests import FileEntry
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


HOSTILE = {
    "..\\..\\evil.exe": "..%5C..%5Cevil.exe",
    "d/..\\x": "d/..%5Cx",
    "C:\\x": "C%3A%5Cx",
    "C:x": "C%3Ax",
    "\\\\host\\share": "%5C%5Chost%5Cshare",
    "..\uff3cx": "..%EF%BC%BCx",
    "/etc/x": "etc/x",
    "../up": ".%2E/up",
    "\uff0e\uff0e/x": "\uff0e%EF%BC%8E/x",
    "a.txt:stream": "a.txt%3Astream",
    "dot./space /x": "dot%2E/space%20/x",
    "CON": "%43ON",
    "d/nul.txt": "d/%6Eul.txt",
    "com¹": "%63om¹",
    "cones/console": "cones/console",
    "gpj\u202eexe": "gpj%E2%80%AEexe",
    "line\nbreak": "line%0Abreak",
    "größe: 5 日本.txt": "größe%3A 5 日本.txt",
}


async def test_names_in_an_archive_stay_in_its_folder_on_every_system() -> None:
    assert {name: portable_path(name) for name in HOSTILE} == HOSTILE
    pieces = [piece async for piece in zipped([*map(_entry, HOSTILE)], lambda _: _read("empty"))]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.namelist() == [*HOSTILE.values()]


async def test_names_that_are_equal_on_other_systems_are_numbered() -> None:
    names = ["a", "A", "ä", "a\u0308", "a (2)", "x\\", "x%5C"]
    pieces = [piece async for piece in zipped([*map(_entry, names)], lambda _: _read("empty"))]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.namelist() == ["a", "A (2)", "ä", "a\u0308 (2)", "a (2) (2)", "x%5C", "x%5C (2)"]


@pytest.mark.parametrize("year", [1970, 2200])
async def test_a_file_with_any_modification_time_is_archived(year: int) -> None:
    pieces = [piece async for piece in zipped([_entry("empty", year=year)], _read)]
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.infolist()[0].date_time[0] == 1980


def test_a_workspace_that_is_too_large_is_refused() -> None:
    check_size([_entry("a", MAX_ARCHIVE_BYTES)])
    with pytest.raises(BadInput):
        check_size([_entry("a", MAX_ARCHIVE_BYTES), _entry("b")])
