"""Restores snapshots of workspaces. A snapshot is not trusted: a compromised runner may have written it."""

from __future__ import annotations

import contextlib
import errno
import os
import tarfile
from collections.abc import Generator
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.archive_writing import (
    Contents,
    SnapshotRefused,
    link_stays,
    parts_of,
    with_path,
)
from banksman.tool_runner.workspaces.beneath import opened_directory

_MAX_WINDOW_BYTES = 8 * 1024 * 1024
"""Memory that a compressed stream may request; level 1 requests 512 KiB."""
_MAX_READ_BYTES = 1024 * 1024
"""Limit for one read: `tarfile` reads an extended header of any stated length into memory."""
_OVERHEAD_BYTES = 8 * 1024
"""Archive bytes per entry in addition to its content: headers, the path twice, and padding."""
_PIECE_BYTES = 256 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o777
_CONTRADICTIONS = frozenset(
    {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG}
)


class _Bounded(RawIOBase):
    """A forward-only stream that limits each read, and the total."""

    def __init__(self, source: BinaryIO, max_bytes: int) -> None:
        self._source = source
        self._left = max_bytes
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes; fewer only at the end of the stream."""
        if not 0 <= size <= _MAX_READ_BYTES:
            raise SnapshotRefused("it has a header that is too long")
        pieces: list[bytes] = []
        while size and (piece := self._source.read(size)):
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        self._left -= len(data)
        self._position += len(data)
        if self._left < 0:
            raise SnapshotRefused("it unpacks to more than a workspace may contain")
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 0 or offset < self._position:
            raise SnapshotRefused("it has a header that points backwards")
        while self._position < offset:
            if not self.read(min(_PIECE_BYTES, offset - self._position)):
                raise SnapshotRefused("it ends in the middle of a file")
        return self._position


@dataclass
class _Reader:
    archive: tarfile.TarFile
    top: int
    identity: SandboxIdentity
    limits: WorkspaceLimits
    entries: int = 0
    size: int = 0
    paths_bytes: int = 0
    files: set[str] = field(default_factory=set[str])
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict[str, tarfile.TarInfo])

    def restore_all(self) -> None:
        while (member := self.archive.next()) is not None:
            self.entries += 1
            if self.entries > self.limits.max_entries:
                raise SnapshotRefused(
                    f"it contains more than {self.limits.max_entries} files, directories and links"
                )
            self._restore(member)
            # tarfile keeps every member it has read. None is needed again, and there may be 100,000.
            cast(Any, self.archive).members.clear()
        # Deepest first, and after all files: a read-only directory refuses new entries, and a new entry
        # changes the mtime of its directory.
        for name, member in sorted(self.directories.items(), reverse=True):
            with self._parent(name) as (parent, last), opened_directory(last, parent) as fd:
                _finish(fd, member)

    def _restore(self, member: tarfile.TarInfo) -> None:
        name = member.name
        if parts_of(name, self.limits.max_depth) is None:
            raise SnapshotRefused(f"{name[:100]!r} is not a path inside a workspace")
        self.paths_bytes = with_path(self.paths_bytes, name)
        if name in self.files or name in self.directories:
            raise SnapshotRefused(f"{name[:100]!r} occurs twice")
        with self._parent(name) as (parent, last):
            if member.isdir():
                self._directory(member, parent, last)
            elif member.issym():
                self._link(member, parent, last)
            elif member.islnk():
                self._hard_link(member, parent, last)
            elif member.isreg() and not member.issparse():
                self._file(member, parent, last)
            else:
                raise SnapshotRefused(f"{name[:100]!r} is neither a file, a directory nor a link")

    def _directory(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        os.mkdir(last, 0o700, dir_fd=parent)
        self.directories[member.name] = member
        with opened_directory(last, parent) as fd:
            self.identity.own(fd)

    def _link(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        if not link_stays(member.name, member.linkname):
            raise SnapshotRefused(f"{member.name[:100]!r} is a link that points out of the workspace")
        os.symlink(member.linkname, last, dir_fd=parent)
        if self.identity.switches:
            os.chown(last, self.identity.uid, self.identity.gid, dir_fd=parent, follow_symlinks=False)

    def _hard_link(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        if member.linkname not in self.files:
            raise SnapshotRefused(
                f"{member.name[:100]!r} is a hard link to an entry that is not a file of the snapshot"
            )
        with self._parent(member.linkname) as (source, source_last):
            os.link(source_last, last, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        self.files.add(member.name)

    def _file(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        self.size += member.size
        if member.size < 0 or self.size > self.limits.max_bytes:
            raise SnapshotRefused(f"its files have more than {self.limits.max_bytes} bytes")
        source = self.archive.extractfile(member)
        if source is None:
            raise SnapshotRefused(f"{member.name[:100]!r} has no content")
        # O_EXCL and O_NOFOLLOW: an earlier entry of the archive may be a link with this name.
        fd = os.open(last, _NEW, 0o600, dir_fd=parent)
        with os.fdopen(fd, "wb") as target:
            self.identity.own(fd)
            left = member.size
            while left:
                piece = source.read(min(_PIECE_BYTES, left))
                if not piece:
                    raise SnapshotRefused("it ends in the middle of a file")
                target.write(piece)
                left -= len(piece)
            target.flush()
            _finish(fd, member)
        self.files.add(member.name)

    @contextlib.contextmanager
    def _parent(self, name: str) -> Generator[tuple[int, str]]:
        *parents, last = name.split("/")
        with contextlib.ExitStack() as owner:
            fd = self.top
            for part in parents:
                fd = owner.enter_context(opened_directory(part, fd))
            yield fd, last


def read_archive(
    source: BinaryIO,
    directory: Path,
    identity: SandboxIdentity,
    limits: WorkspaceLimits,
    *,
    expected: Contents,
) -> None:
    """Unpack a snapshot into an empty directory that no other process can reach.

    Nothing is written outside the directory. A snapshot with an entry that points outside is refused as a
    whole. After an error, the content of the directory is undefined. `expected` are the contents according to
    the manifest: `tarfile` reads a damaged archive as a shorter one.

    Raises:
        SnapshotRefused: the archive is damaged, exceeds the limits, or has entries that no runner writes.
    """
    # The limit for files does not cover padding and headers, so the whole stream has a limit too.
    max_bytes = limits.max_bytes + (limits.max_entries + 4) * _OVERHEAD_BYTES
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        with (
            decompressor.stream_reader(source, closefd=False) as plain,
            opened_directory(directory) as top,
            _archive(_Bounded(cast(BinaryIO, plain), max_bytes)) as archive,
        ):
            reader = _Reader(archive, top, identity, limits)
            reader.restore_all()
    except (tarfile.TarError, zstandard.ZstdError, RecursionError, ValueError, OverflowError) as error:
        raise SnapshotRefused(f"it is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno in _CONTRADICTIONS:
            raise SnapshotRefused(f"its entries contradict each other: {error.strerror}") from error
        raise
    if (found := Contents(reader.entries, reader.size)) != expected:
        raise SnapshotRefused(f"it is damaged: it has {found.entries} of {expected.entries} entries")


def _archive(source: _Bounded) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(BinaryIO, source), mode="r:", encoding="utf-8", errors="surrogateescape")


def _finish(fd: int, member: tarfile.TarInfo) -> None:
    os.utime(fd, (member.mtime, member.mtime))
    os.fchmod(fd, member.mode & _MODE)
