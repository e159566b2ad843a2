"""Writes a snapshot of a workspace: one tar archive, compressed with zstd.

`parts_of` and `link_stays` are the rules for names and links; reading an archive applies them too.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.beneath import OPEN_DIRECTORY, change_mode
from banksman.tool_runner.workspaces.files import ALIAS

LEVEL = 1
"""Workspaces contain mostly text: higher levels save a few per cent and take several times as long."""
# O_NONBLOCK: opening a FIFO would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODE = 0o777
_BUFFER_BYTES = 1024 * 1024
_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", ALIAS)
"""Directories that every sandbox contains; a virtual environment links to its interpreter there."""
MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_PATHS_BYTES = 32 * 1024 * 1024
"""Maximum bytes of all paths of a snapshot, which are in memory while it is written or read."""


class SnapshotRefused(Exception):
    """A workspace that cannot be snapshotted, or a snapshot that is not restored; the message states why."""


def with_path(total: int, name: str) -> int:
    """Return `total` with the bytes of one more path; refuse a snapshot with more than `MAX_PATHS_BYTES`."""
    total += len(os.fsencode(name))
    if total > MAX_PATHS_BYTES:
        raise SnapshotRefused(f"its paths have more than {MAX_PATHS_BYTES} bytes together")
    return total


@dataclass(frozen=True, slots=True)
class Contents:
    entries: int
    size: int
    """Total bytes of the files."""


@dataclass
class _Writer:
    archive: tarfile.TarFile
    limits: WorkspaceLimits
    entries: int = 0
    size: int = 0
    paths_bytes: int = 0
    linked: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """The first name of each file that has several names."""

    def add(self, name: str, entry: os.DirEntry[str], directory: int) -> None:
        status = entry.stat(follow_symlinks=False)
        member = _member(name, status)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._count(0)
            self._append(member)
            with _opened(entry.name, directory, OPEN_DIRECTORY) as fd:
                self.add_all(fd, f"{name}/")
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=directory)
            if link_stays(name, member.linkname):
                self._count(0)
                self._append(member)
        elif stat.S_ISREG(status.st_mode):
            self._add_file(member, status, entry.name, directory)

    def add_all(self, directory: int, prefix: str) -> None:
        """Add the entries below a directory, except sockets, pipes, devices and links that point outside."""
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{prefix}{entry.name}"
                if parts_of(name, self.limits.max_depth) is None:
                    raise SnapshotRefused(f"{name[:100]!r} is deeper or longer than a snapshot allows")
                self.paths_bytes = with_path(self.paths_bytes, name)
                self.add(name, entry, directory)

    def _add_file(self, member: tarfile.TarInfo, status: os.stat_result, name: str, directory: int) -> None:
        if status.st_nlink > 1:
            first = self.linked.setdefault((status.st_dev, status.st_ino), member.name)
            if first != member.name:
                member.type, member.linkname = tarfile.LNKTYPE, first
                self._count(0)
                self._append(member)
                return
        with _opened(name, directory, _FILE) as fd, os.fdopen(fd, "rb", closefd=False) as file:
            member.size = os.fstat(fd).st_size
            self._count(member.size)
            self._append(member, file)

    def _append(self, member: tarfile.TarInfo, file: BinaryIO | None = None) -> None:
        self.archive.addfile(member, file)
        # tarfile keeps every member it has written. None is needed again, and there may be 100,000.
        cast(Any, self.archive).members.clear()

    def _count(self, size: int) -> None:
        self.entries += 1
        self.size += size
        if self.entries > self.limits.max_entries:
            raise SnapshotRefused(
                f"it contains more than {self.limits.max_entries} files, directories and links"
            )
        if self.size > self.limits.max_bytes:
            raise SnapshotRefused(f"its files have more than {self.limits.max_bytes} bytes")


def write_archive(workspace: Path, target: BinaryIO, limits: WorkspaceLimits) -> Contents:
    """Archive a workspace in which nothing runs; raise `SnapshotRefused` if it exceeds its limits.

    Holes of sparse files count with their full size, so that no snapshot exceeds the limits of a restore.
    """
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        compressor.stream_writer(target, closefd=False) as compressed,
        _archive(cast(BinaryIO, compressed)) as archive,
    ):
        writer = _Writer(archive, limits)
        with _opened(str(workspace), None, OPEN_DIRECTORY) as top:
            writer.add_all(top, "")
    return Contents(writer.entries, writer.size)


def _archive(target: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(
        fileobj=target,
        mode="w|",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        bufsize=_BUFFER_BYTES,
    )


def _member(name: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(status.st_mode) & _MODE
    member.mtime = int(status.st_mtime)
    return member


@contextlib.contextmanager
def _opened(name: str, directory: int | None, flags: int) -> Generator[int]:
    """Open an entry whose owner may have removed its own permissions."""
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except PermissionError:
        fd = _opened_after_chmod(name, directory, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _opened_after_chmod(name: str, directory: int | None, flags: int) -> int:
    mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    change_mode(name, directory, 0o700)
    try:
        return os.open(name, flags, dir_fd=directory)
    finally:
        change_mode(name, directory, mode)


def parts_of(path: str, max_depth: int) -> list[str] | None:
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        return None
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", "..") or len(part.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            return None
    return parts if len(parts) <= max_depth else None


def link_stays(path: str, target: str) -> bool:
    """Return whether a link at `path` points into the workspace or to a directory of every sandbox."""
    if not target or "\0" in target or len(target.encode("utf-8", "surrogateescape")) >= MAX_PATH_BYTES:
        return False
    if target.startswith("/"):
        normal = posixpath.normpath(target)
        return any(normal == root or normal.startswith(f"{root}/") for root in _VISIBLE)
    normal = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return normal != ".." and not normal.startswith("../")
