"""Writes and restores snapshots of workspaces: one tar archive, compressed with zstd.

A snapshot is not trusted: a compromised runner may have written it. Writing and reading apply the same rules
for names, links and sizes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.beneath import OPEN_DIRECTORY, change_mode, opened_directory
from banksman.tool_runner.workspaces.links import Links, link_stays

LEVEL = 1
"""Workspaces contain mostly text: higher levels save a few per cent and take several times as long."""
# O_NONBLOCK: opening a FIFO would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MODE = 0o777
_BUFFER_BYTES = 1024 * 1024
MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_PATHS_BYTES = 32 * 1024 * 1024
"""Maximum bytes of all paths of a snapshot, which are in memory while it is written or read."""
_MAX_WINDOW_BYTES = 8 * 1024 * 1024
"""Memory that a compressed stream may request; level 1 requests 512 KiB."""
_MAX_READ_BYTES = 1024 * 1024
"""Limit for one read: `tarfile` reads an extended header of any stated length into memory."""
_OVERHEAD_BYTES = 8 * 1024
"""Archive bytes per entry in addition to its content: headers, the path twice, and padding."""
_PIECE_BYTES = 256 * 1024
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CONTRADICTIONS = frozenset(
    {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG}
)


class SnapshotRefused(Exception):
    """A workspace that cannot be snapshotted, or a snapshot that is not restored; the message states why."""


@dataclass(frozen=True, slots=True)
class Contents:
    entries: int
    size: int
    """Total bytes of the files."""


@dataclass
class _Counter:
    """Counts the contents of a snapshot, and refuses them above the limits of a workspace."""

    limits: WorkspaceLimits
    entries: int = 0
    size: int = 0
    paths_bytes: int = 0

    def add_path(self, name: str) -> None:
        self.paths_bytes += len(os.fsencode(name))
        if self.paths_bytes > MAX_PATHS_BYTES:
            raise SnapshotRefused(f"its paths have more than {MAX_PATHS_BYTES} bytes together")

    def add_entry(self) -> None:
        self.entries += 1
        if self.entries > self.limits.max_entries:
            raise SnapshotRefused(
                f"it contains more than {self.limits.max_entries} files, directories and links"
            )

    def add_file(self, size: int) -> None:
        self.size += size
        if size < 0 or self.size > self.limits.max_bytes:
            raise SnapshotRefused(f"its files have more than {self.limits.max_bytes} bytes")

    def contents(self) -> Contents:
        return Contents(self.entries, self.size)


def is_storable(path: str, max_depth: int) -> bool:
    """Return whether a path stays inside a workspace and is neither too long nor too deep."""
    if not path or "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        return False
    parts = path.split("/")
    if any(part in ("", ".", "..") or len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        return False
    return len(parts) <= max_depth


@dataclass
class _Writer:
    archive: tarfile.TarFile
    counter: _Counter
    linked: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """The first name of each file that has several names."""
    links: list[tarfile.TarInfo] = field(default_factory=list[tarfile.TarInfo])

    def add(self, name: str, entry: os.DirEntry[str], directory: int) -> None:
        status = entry.stat(follow_symlinks=False)
        member = _member(name, status)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._append(member)
            with _opened(entry.name, directory, OPEN_DIRECTORY) as fd:
                self.add_all(fd, f"{name}/")
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=directory)
            if link_stays(name, member.linkname):
                self.links.append(member)
        elif stat.S_ISREG(status.st_mode):
            self._add_file(member, status, entry.name, directory)

    def add_all(self, directory: int, prefix: str) -> None:
        """Add the entries below a directory, except sockets, pipes, devices and links that point outside."""
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = f"{prefix}{entry.name}"
                if not is_storable(name, self.counter.limits.max_depth):
                    raise SnapshotRefused(f"{name[:100]!r} is deeper or longer than a snapshot allows")
                self.counter.add_path(name)
                self.add(name, entry, directory)

    def add_links(self) -> None:
        """Add the links at the end, when all others through which one may lead are known."""
        for member in _staying(self.links):
            self._append(member)

    def _add_file(self, member: tarfile.TarInfo, status: os.stat_result, name: str, directory: int) -> None:
        if status.st_nlink > 1:
            first = self.linked.setdefault((status.st_dev, status.st_ino), member.name)
            if first != member.name:
                member.type, member.linkname = tarfile.LNKTYPE, first
                self._append(member)
                return
        with _opened(name, directory, _FILE) as fd, os.fdopen(fd, "rb", closefd=False) as file:
            member.size = os.fstat(fd).st_size
            self.counter.add_file(member.size)
            self._append(member, file)

    def _append(self, member: tarfile.TarInfo, file: BinaryIO | None = None) -> None:
        self.counter.add_entry()
        self.archive.addfile(member, file)
        _forget_members(self.archive)


def write_archive(workspace: Path, target: BinaryIO, limits: WorkspaceLimits) -> Contents:
    """Archive a workspace in which nothing runs; raise `SnapshotRefused` if it exceeds its limits.

    Holes of sparse files count with their full size, so that no snapshot exceeds the limits of a restore.
    """
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        compressor.stream_writer(target, closefd=False) as compressed,
        tarfile.open(
            fileobj=cast(BinaryIO, compressed),
            mode="w|",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
            bufsize=_BUFFER_BYTES,
        ) as archive,
        _opened(str(workspace), None, OPEN_DIRECTORY) as top,
    ):
        writer = _Writer(archive, _Counter(limits))
        writer.add_all(top, "")
        writer.add_links()
    return writer.counter.contents()


def _staying(members: list[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
    """Yield the links that do not leave the workspace through another one."""
    links = Links({member.name: member.linkname for member in members})
    return (member for member in members if links.stays(member.name))


def _forget_members(archive: tarfile.TarFile) -> None:
    """Forget the members so far. tarfile keeps each; none is needed again, and there may be 100,000."""
    cast(Any, archive).members.clear()


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
    counter: _Counter
    files: set[str] = field(default_factory=set[str])
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict[str, tarfile.TarInfo])
    links: list[tarfile.TarInfo] = field(default_factory=list[tarfile.TarInfo])

    def restore_all(self) -> None:
        while (member := self.archive.next()) is not None:
            self.counter.add_entry()
            self._restore(member)
            _forget_members(self.archive)
        # Last, so that no entry is written through a link. Runners of version 1.0 also stored links that
        # leave through another one.
        for member in _staying(self.links):
            self._link(member)
        # Deepest first, and after all files: a read-only directory refuses new entries, and a new entry
        # changes the mtime of its directory.
        for name, member in sorted(self.directories.items(), reverse=True):
            with self._parent(name) as (parent, last), opened_directory(last, parent) as fd:
                _finish(fd, member)

    def _restore(self, member: tarfile.TarInfo) -> None:
        name = member.name
        if not is_storable(name, self.counter.limits.max_depth):
            raise SnapshotRefused(f"{name[:100]!r} is not a path inside a workspace")
        self.counter.add_path(name)
        if name in self.files or name in self.directories:
            raise SnapshotRefused(f"{name[:100]!r} occurs twice")
        if member.issym():
            if not link_stays(name, member.linkname):
                raise SnapshotRefused(f"{name[:100]!r} is a link that points out of the workspace")
            self.links.append(member)
            return
        with self._parent(name) as (parent, last):
            if member.isdir():
                self._directory(member, parent, last)
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

    def _link(self, member: tarfile.TarInfo) -> None:
        with self._parent(member.name) as (parent, last):
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
        self.counter.add_file(member.size)
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
            tarfile.open(
                fileobj=cast(BinaryIO, _Bounded(cast(BinaryIO, plain), max_bytes)),
                mode="r:",
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive,
        ):
            reader = _Reader(archive, top, identity, _Counter(limits))
            reader.restore_all()
    except (tarfile.TarError, zstandard.ZstdError, RecursionError, ValueError, OverflowError) as error:
        raise SnapshotRefused(f"it is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno in _CONTRADICTIONS:
            raise SnapshotRefused(f"its entries contradict each other: {error.strerror}") from error
        raise
    if (found := reader.counter.contents()) != expected:
        raise SnapshotRefused(f"it is damaged: it has {found.entries} of {expected.entries} entries")


def _finish(fd: int, member: tarfile.TarInfo) -> None:
    os.utime(fd, (member.mtime, member.mtime))
    os.fchmod(fd, member.mode & _MODE)
