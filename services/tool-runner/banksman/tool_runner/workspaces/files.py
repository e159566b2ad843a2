"""Files of a workspace, accessed by descriptors only.

A path is never checked first and opened later: a command could replace a directory by a link in between.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import posixpath
import secrets
import stat
import time
import unicodedata
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from banksman.contracts.runner_requests import FileEntry, FileReply
from banksman.contracts.wire import has_lone_surrogate, json_bytes
from banksman.contracts.workspaces import RESERVED_PREFIX
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.workspaces.beneath import MAX_PATH_BYTES, open_beneath, opened_directory

ALIAS = "/workspace"
"""The path of the workspace inside the sandbox; the only absolute path that is accepted."""

_NEVER_BLOCK = os.O_NONBLOCK | os.O_NOCTTY
"""Opening a FIFO without O_NONBLOCK waits for a writer."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE_MODE = 0o644
_NEW_PROGRAM_MODE = 0o755
_NEW_DIRECTORY_MODE = 0o755
_MAX_DEPTH = 128
HOME_DIRECTORY = ".banksman/home"
"""The home directory of commands, whose files no list shows."""
MAX_VISITED = 100_000
"""Maximum entries of a workspace that one listing reads."""
MAX_LISTED_BYTES = 768 * 1024
"""Maximum bytes of the files of one listing as JSON: a reply over NATS has at most 1 MiB."""
_ENTRY_BYTES = 128
"""Maximum bytes of a listed file as JSON without its path."""
_LAST_SECOND = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


class PathRefused(Exception):
    """A path that cannot be read or written. The message names the path and is for the model."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{printable(path)}: {reason}")


@dataclass(frozen=True, slots=True)
class FilePiece:
    data: bytes
    offset: int
    total_bytes: int


def relative(path: str) -> str:
    """Return a path of a tool call relative to the workspace. Only opening it checks its target.

    Raises:
        PathRefused: the path is empty, has NUL or a lone surrogate, or is absolute outside `/workspace`.
    """
    if not path or "\0" in path:
        raise PathRefused(path, "expected a path that is not empty and without NUL")
    if has_lone_surrogate(path):
        raise PathRefused(path, "the path is not valid Unicode")
    if path == ALIAS or path.startswith(f"{ALIAS}/"):
        return path.removeprefix(ALIAS).lstrip("/") or "."
    if path.startswith("/"):
        raise PathRefused(path, "absolute paths are refused; give a path relative to the workspace")
    return path


def read_part(workspace: Path, path: str, *, offset: int, max_bytes: int) -> FilePiece:
    """Read at most `max_bytes` of a regular file from byte `offset`.

    Symbolic links are followed if they stay inside the workspace; otherwise `PathRefused` is raised.
    """
    with _refusals(path), opened_directory(workspace) as root:
        fd = open_beneath(root, _as_stored(root, relative(path)), os.O_RDONLY | _NEVER_BLOCK, links=True)
        with os.fdopen(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            _require_regular(path, status)
            data = os.pread(file.fileno(), max_bytes, offset)
            return FilePiece(data, offset, status.st_size)


def write_whole(
    workspace: Path, path: str, content: bytes, identity: SandboxIdentity, *, executable: bool = False
) -> bool:
    """Create or replace a file atomically, and create missing directories; return True if the file is new.

    A reader sees the old or the new content, never a part. No link is followed: a path with a link raises
    `PathRefused`. A replaced file keeps its mode; a new file may be `executable`. Other hard links of a
    replaced file keep the old content.
    """
    with _refusals(path), contextlib.ExitStack() as owner:
        *parents, name = _components(path)
        # Each parent keeps a descriptor open until the file is written.
        if len(parents) > _MAX_DEPTH:
            raise PathRefused(path, f"a file may have at most {_MAX_DEPTH} directories above it")
        # Each component is opened on its own, so the kernel would create a path that it never opens again.
        if len("/".join((*parents, name)).encode()) > MAX_PATH_BYTES:
            raise PathRefused(path, _REASONS[errno.ENAMETOOLONG])
        directory = owner.enter_context(opened_directory(workspace))
        for parent in parents:
            directory = _descend(directory, parent, identity)
            owner.callback(os.close, directory)
        name = _stored_name(directory, name)
        existing = _existing_mode(path, directory, name)
        new = _NEW_PROGRAM_MODE if executable else _NEW_FILE_MODE
        _replace(directory, name, content, new if existing is None else existing, identity)
        return existing is None


def delete(workspace: Path, path: str) -> None:
    with _refusals(path), opened_directory(workspace) as root:
        *parents, name = _components(path)
        above = _as_stored(root, posixpath.join(".", *parents))
        directory = open_beneath(root, above, _DIRECTORY, links=False)
        try:
            os.unlink(_stored_name(directory, name), dir_fd=directory)
        finally:
            os.close(directory)


def listing(workspace: Path, *, below: str = "", after: str = "", max_entries: int) -> FileReply:
    """List the first regular files by path; links are neither listed nor followed.

    The files are those at or below the path `below`, which is empty for the whole workspace, with paths that
    sort after `after`. All together have at most `MAX_LISTED_BYTES` as JSON. `more` is set if more files
    follow, or the workspace has more than `MAX_VISITED` entries.
    """
    top = posixpath.normpath(relative(below)) if below else "."
    first = _FirstFiles(max_entries)
    with opened_directory(workspace) as root:
        for visited, (_, entry, path) in enumerate(_walk(root, "", 1, closed=HOME_DIRECTORY)):
            if visited == MAX_VISITED:
                first.more = True
                break
            if path > after and (top == "." or path == top or path.startswith(f"{top}/")):
                with contextlib.suppress(OSError):
                    if _is_listed(entry):
                        first.add(_entry(path, entry.stat(follow_symlinks=False)))
    return first.reply()


def sweep_temporaries(workspace: Path, *, deadline: float = math.inf) -> int:
    """Delete temporary files of interrupted writes, and return their number. Nothing runs in the workspace.

    Stops at `deadline`, a time of the monotonic clock.
    """
    swept = 0
    with opened_directory(workspace) as root:
        for directory, entry, _ in _walk(root, "", 1):
            if time.monotonic() > deadline:
                break
            if entry.name.startswith(RESERVED_PREFIX):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=directory)
                    swept += 1
    return swept


def _components(path: str) -> list[str]:
    """Return the components of a path to write. `..` is resolved in the text: writing follows no links."""
    wanted = relative(path)
    normal = posixpath.normpath(wanted)
    if wanted.endswith("/") or normal == ".":
        raise PathRefused(path, "this is the path of a directory; give the path of a file")
    parts = normal.split("/")
    if parts[0] == "..":
        raise PathRefused(path, "the path leaves the workspace")
    if any(part.startswith(RESERVED_PREFIX) for part in parts):
        raise PathRefused(path, f"names that begin with {RESERVED_PREFIX!r} are reserved")
    return parts


def _as_stored(root: int, path: str) -> str:
    """Return a path whose names are spelled as the existing ones; see `_stored_name`."""
    if path.isascii():
        return path
    stored = ""
    for name in path.split("/"):
        with contextlib.suppress(OSError):
            directory = open_beneath(root, stored or ".", _DIRECTORY, links=True)
            try:
                name = _stored_name(directory, name)
            finally:
                os.close(directory)
        stored = f"{stored}/{name}" if stored else name
    return stored


def _stored_name(directory: int, name: str) -> str:
    """Return the existing name that is the same text in Unicode, otherwise the given one.

    A letter with a mark is one character or two: macOS and browsers on it write two, keyboards one.
    """
    if name.isascii() or _exists(directory, name):
        return name
    wanted = unicodedata.normalize("NFC", name)
    with os.scandir(directory) as entries:
        visited = itertools.islice(entries, MAX_VISITED)
        return next((one.name for one in visited if unicodedata.normalize("NFC", one.name) == wanted), name)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _descend(directory: int, name: str, identity: SandboxIdentity) -> int:
    name = _stored_name(directory, name)
    try:
        return open_beneath(directory, name, _DIRECTORY, links=False)
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=directory)
    # Opened again without links: a command may have replaced the new directory meanwhile.
    fd = open_beneath(directory, name, _DIRECTORY, links=False)
    identity.own(fd)
    return fd


def _existing_mode(path: str, directory: int, name: str) -> int | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_regular(path, status)
    return stat.S_IMODE(status.st_mode) & 0o777


def _replace(directory: int, name: str, content: bytes, mode: int, identity: SandboxIdentity) -> None:
    # rename(2) is atomic: a reader sees the old or the new file. Commands cannot guess the temporary name.
    temporary = f"{RESERVED_PREFIX}{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = open_beneath(directory, temporary, flags, links=False, mode=0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            identity.own(file.fileno())
            os.fchmod(file.fileno(), mode)
            file.write(content)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _walk(
    directory: int, prefix: str, depth: int, *, closed: str = ""
) -> Iterator[tuple[int, os.DirEntry[str], str]]:
    """Yield each entry with the descriptor of its directory and its printable path; follow no links.

    The directory `closed` is not opened. Entries whose paths are too long to be opened are left out, so that
    no path takes more memory than that.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            path = f"{prefix}{printable(entry.name)}"
            if len(path.encode()) > MAX_PATH_BYTES:
                continue
            yield directory, entry, path
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH and path != closed:
                    yield from _below(directory, entry.name, path, depth, closed)


def _below(
    parent: int, name: str, path: str, depth: int, closed: str
) -> Iterator[tuple[int, os.DirEntry[str], str]]:
    fd = open_beneath(parent, name, _DIRECTORY, links=False)
    try:
        yield from _walk(fd, f"{path}/", depth + 1, closed=closed)
    finally:
        os.close(fd)


@dataclass
class _FirstFiles:
    """The first files by path, of all that are added in any order. It holds at most twice its limits."""

    max_entries: int
    more: bool = False
    """True if a file was left out."""
    _entries: list[FileEntry] = field(default_factory=list[FileEntry])
    _bytes: int = 0

    def add(self, entry: FileEntry) -> None:
        self._entries.append(entry)
        self._bytes += _listed_bytes(entry)
        if len(self._entries) > 2 * self.max_entries or self._bytes > 2 * MAX_LISTED_BYTES:
            self._cut()

    def reply(self) -> FileReply:
        self._cut()
        return FileReply(items=tuple(self._entries), more=self.more)

    def _cut(self) -> None:
        self._entries.sort(key=lambda entry: entry.path)
        kept = size = 0
        for entry in self._entries[: self.max_entries]:
            if size + (added := _listed_bytes(entry)) > MAX_LISTED_BYTES:
                break
            kept, size = kept + 1, size + added
        self.more = self.more or kept < len(self._entries)
        del self._entries[kept:]
        self._bytes = size


def _listed_bytes(entry: FileEntry) -> int:
    return json_bytes(entry.path) + _ENTRY_BYTES


def _is_listed(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(RESERVED_PREFIX) and entry.is_file(follow_symlinks=False)


def _entry(path: str, status: os.stat_result) -> FileEntry:
    # Some file systems store times that Python's dates do not have.
    modified = min(max(status.st_mtime, 0.0), _LAST_SECOND)
    at = datetime.fromtimestamp(modified, tz=UTC)
    return FileEntry(path=path, size=status.st_size, modified_at=at)


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PathRefused(path, "this is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(path, "this is not a regular file")


_REASONS = {
    errno.ENOENT: "no such file",
    errno.EXDEV: "the path leaves the workspace",
    errno.ELOOP: "the path goes through a symbolic link that is not followed",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "this is a directory",
    errno.ENAMETOOLONG: "the path is too long",
    errno.ENXIO: "this is not a regular file",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "no space left on the disk",
    errno.EAGAIN: "the path changed while it was opened; try again",
}


def has_reason(error: BaseException) -> bool:
    """Return whether an error of the kernel concerns the path, and not the disk or the machine."""
    return not isinstance(error, OSError) or error.errno in _REASONS


@contextlib.contextmanager
def _refusals(path: str) -> Generator[None]:
    """Translate errors of the kernel for a model, without the runner's own paths."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, os.strerror(error.errno or 0))
        raise PathRefused(path, reason) from error


def printable(path: str) -> str:
    """Return a printable name: each byte that is not UTF-8 becomes U+FFFD."""
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in path)
