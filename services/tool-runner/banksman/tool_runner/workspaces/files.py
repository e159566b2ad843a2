"""Files of a workspace, reached only by descriptors: a path is never checked first and used later."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import posixpath
import secrets
import stat
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from banksman.contracts.assistant_files import RESERVED_PREFIX
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.workspaces.beneath import open_beneath

ALIAS = "/workspace"
"""The workspace's name inside the sandbox; the only absolute path that is understood."""

_PRIVATE_PREFIX = RESERVED_PREFIX
_NEVER_BLOCK = os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE_MODE = 0o644
_NEW_PROGRAM_MODE = 0o755
_NEW_DIRECTORY_MODE = 0o755
_MAX_DEPTH = 128


class PathRefused(Exception):
    """A path that cannot be read or written; the message is for the model and names the path."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{_printable(path)}: {reason}")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file."""

    data: bytes
    offset: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a listing."""

    path: str
    """Relative to the workspace, with `/`."""
    size_bytes: int
    modified: datetime


def relative(path: str) -> str:
    """A path as the tools accept it, made relative to the workspace.

    Says nothing about what the path leads to: only opening it does.

    Raises:
        PathRefused: for an empty path, NUL, a lone surrogate, or an absolute path outside `/workspace`.
    """
    if not path or "\0" in path:
        raise PathRefused(path, "a path without NUL and not empty is expected")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise PathRefused(path, "the path is not valid Unicode") from None
    if path == ALIAS or path.startswith(f"{ALIAS}/"):
        return path.removeprefix(ALIAS).lstrip("/") or "."
    if path.startswith("/"):
        raise PathRefused(path, "absolute paths are refused; give a path relative to the workspace")
    return path


def read_part(workspace: Path, path: str, *, offset: int, max_bytes: int) -> FilePart:
    """At most `max_bytes` of a regular file, from byte `offset`.

    Links are followed as long as they stay inside.

    Raises:
        PathRefused: when there is no such file, it is no regular file, or the path leaves the workspace.
    """
    with _refusals(path), _opened(workspace) as root:
        fd = open_beneath(root, relative(path), os.O_RDONLY | _NEVER_BLOCK, links=True)
        with os.fdopen(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            _require_regular(path, status)
            data = os.pread(file.fileno(), max_bytes, offset)
            return FilePart(data, offset, status.st_size)


def write_whole(
    workspace: Path, path: str, content: bytes, identity: SandboxIdentity, *, executable: bool = False
) -> bool:
    """Replace or create a file in one step, and the directories above it; returns True when it is new.

    A reader sees the old content or the new, never a part. No link is followed. The mode of a replaced
    file is kept, a new one may be `executable`; other names of it (hard links) keep the old content.

    Raises:
        PathRefused: when the path leaves the workspace, goes through a link, or names no regular file.
    """
    with _refusals(path), contextlib.ExitStack() as owner:
        *parents, name = _components(path)
        # Each of them holds a descriptor until the file is written.
        if len(parents) > _MAX_DEPTH:
            raise PathRefused(path, f"at most {_MAX_DEPTH} directories above a file are expected")
        directory = owner.enter_context(_opened(workspace))
        for parent in parents:
            directory = _descend(directory, parent, identity)
            owner.callback(os.close, directory)
        existing = _existing_mode(path, directory, name)
        new = _NEW_PROGRAM_MODE if executable else _NEW_FILE_MODE
        _replace(directory, name, content, new if existing is None else existing, identity)
        return existing is None


def delete(workspace: Path, path: str) -> None:
    """Delete one file or link.

    Raises:
        PathRefused: when there is none, it is a directory, or the path leaves the workspace.
    """
    with _refusals(path), _opened(workspace) as root:
        *parents, name = _components(path)
        directory = open_beneath(root, posixpath.join(".", *parents), _DIRECTORY, links=False)
        try:
            os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def listing(workspace: Path, *, max_entries: int) -> list[FileEntry]:
    """At most `max_entries` regular files of a workspace by path; links are neither listed nor followed."""
    found: list[FileEntry] = []
    with _opened(workspace) as root:
        for _, entry, path in _walk(root, "", 1):
            with contextlib.suppress(OSError):
                if _is_listed(entry):
                    found.append(_entry(path, entry.stat(follow_symlinks=False)))
            if len(found) >= max_entries:
                break
    return sorted(found, key=lambda entry: entry.path)


def sweep_temporaries(workspace: Path, *, deadline: float = math.inf) -> int:
    """Delete what interrupted writes left in a workspace in which nothing runs; returns how many.

    Stops at `deadline`, a moment of the monotonic clock.

    Raises:
        OSError: when the workspace cannot be opened.
    """
    swept = 0
    with _opened(workspace) as root:
        for directory, entry, _ in _walk(root, "", 1):
            if time.monotonic() > deadline:
                break
            if entry.name.startswith(_PRIVATE_PREFIX):
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=directory)
                    swept += 1
    return swept


def _components(path: str) -> list[str]:
    """The parts of a path to write. `..` is taken away by text, which is exact where no link is followed."""
    wanted = relative(path)
    normal = posixpath.normpath(wanted)
    if wanted.endswith("/") or normal == ".":
        raise PathRefused(path, "this names a directory; give the path of a file")
    parts = normal.split("/")
    if parts[0] == "..":
        raise PathRefused(path, "the path leaves the workspace")
    if any(part.startswith(_PRIVATE_PREFIX) for part in parts):
        raise PathRefused(path, f"names that begin with {_PRIVATE_PREFIX!r} are reserved")
    return parts


def _descend(directory: int, name: str, identity: SandboxIdentity) -> int:
    """Open a subdirectory, made when it is missing."""
    try:
        return open_beneath(directory, name, _DIRECTORY, links=False)
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=directory)
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
    temporary = f"{_PRIVATE_PREFIX}{secrets.token_hex(8)}.tmp"
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


def _walk(directory: int, prefix: str, depth: int) -> Iterator[tuple[int, os.DirEntry[str], str]]:
    """Each entry with the descriptor of its directory and its printable path; no link is followed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            path = f"{prefix}{_printable(entry.name)}"
            yield directory, entry, path
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                    yield from _below(directory, entry.name, path, depth)


def _below(parent: int, name: str, path: str, depth: int) -> Iterator[tuple[int, os.DirEntry[str], str]]:
    fd = open_beneath(parent, name, _DIRECTORY, links=False)
    try:
        yield from _walk(fd, f"{path}/", depth + 1)
    finally:
        os.close(fd)


def _is_listed(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(_PRIVATE_PREFIX) and entry.is_file(follow_symlinks=False)


def _entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, datetime.fromtimestamp(status.st_mtime, tz=UTC))


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PathRefused(path, "this is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(path, "this is not a regular file")


@contextlib.contextmanager
def _opened(workspace: Path) -> Generator[int]:
    fd = os.open(workspace, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


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


@contextlib.contextmanager
def _refusals(path: str) -> Generator[None]:
    """Turn what the kernel says into words for a model; the runner's own paths stay out of them."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, os.strerror(error.errno or 0))
        raise PathRefused(path, reason) from error


def _printable(path: str) -> str:
    """A name for people: what is not UTF-8 in it becomes U+FFFD."""
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in path)
