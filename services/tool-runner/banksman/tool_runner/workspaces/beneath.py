"""Opens paths that must stay below a directory, with the kernel's `openat2` or without it.

Kernels before 5.6 have no `openat2`, and older seccomp profiles refuse it with ENOSYS or EPERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Generator
from enum import IntFlag
from pathlib import Path
from typing import NoReturn

_SYS_OPENAT2 = 437  # on every architecture
_OPENAT2_ATTEMPTS = 16


class Resolve(IntFlag):
    """Restrictions on the resolution of a path; https://man7.org/linux/man-pages/man2/openat2.2.html."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


_INSIDE = Resolve.BENEATH | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
"""The kernel's own limit (path_resolution(7))."""
_MAX_STEPS = 20_000
"""Directories opened for one path; each `..` walks again from the top."""
MAX_PATH_BYTES = 4095
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_beneath(directory: int, path: str, flags: int, *, links: bool, mode: int = 0) -> int:
    """Open `path` below the descriptor `directory`; return a descriptor with O_CLOEXEC.

    With `links`, symbolic links are followed if they stay below; without it, no link is followed.

    Raises:
        OSError: EXDEV if the path leaves the directory or its file system, ELOOP for a refused link,
            otherwise as `open`.
    """
    if kernel_resolves_beneath():
        return openat2(directory, path, flags, _INSIDE if links else _INSIDE | Resolve.NO_SYMLINKS, mode)
    return walk_beneath(directory, path, flags, links=links, mode=mode)


@functools.cache
def kernel_resolves_beneath() -> bool:
    """Return whether this process may call `openat2`. The result cannot change while the process runs."""
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(openat2(directory, ".", os.O_PATH | os.O_DIRECTORY, Resolve.BENEATH))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    finally:
        os.close(directory)
    return True


def openat2(directory: int, path: str, flags: int, resolve: Resolve, mode: int = 0) -> int:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    # EAGAIN: a directory on the path was renamed meanwhile, so the kernel cannot prove that the path stayed
    # below (openat2(2)).
    number = 0
    for _ in range(_OPENAT2_ATTEMPTS):
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def walk_beneath(directory: int, path: str, flags: int, *, links: bool, mode: int = 0) -> int:
    """Do the same as `open_beneath` without `openat2`, one component at a time, relative to a descriptor.

    No step follows a link. `..` is never passed to the kernel, because a directory that is moved meanwhile
    has another parent; the walk goes back by the names of the directories that it opened. It therefore stays
    below `directory`, even if directories are renamed meanwhile.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    if not name:
        _fail(errno.ENOENT, path)
    if len(name) > MAX_PATH_BYTES:
        _fail(errno.ENAMETOOLONG, path)
    if name.startswith(b"/"):
        _fail(errno.EXDEV, path)
    with contextlib.closing(_Walk(directory, path, links)) as walk:
        return walk.to(name, flags, mode)


class _Walk:
    def __init__(self, top: int, path: str, links: bool) -> None:
        self._top = top
        self._path = path
        self._links_left = _MAX_LINKS if links else 0
        self._steps_left = _MAX_STEPS
        self._device = os.fstat(top).st_dev
        self._names: list[bytes] = []
        self._here = os.dup(top)

    def close(self) -> None:
        os.close(self._here)

    def to(self, name: bytes, flags: int, mode: int) -> int:
        pending = name.split(b"/")[::-1]
        while True:
            part = pending.pop()
            if part == b"..":
                self._up()
                part = b"."
            if part in (b"", b"."):
                if pending:
                    continue
                part = b"."
            opening, opened_mode = (_STEP, 0) if pending else (flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
            fd = self._open(part, opening, opened_mode, pending)
            if fd is None:
                continue
            if not pending:
                return fd
            self._enter(part, fd)

    def _open(self, part: bytes, flags: int, mode: int, pending: list[bytes]) -> int | None:
        """Return None for a link, and add its components to `pending`."""
        self._count()
        try:
            fd = os.open(part, flags, mode, dir_fd=self._here)
        except OSError as error:
            # For a link, O_NOFOLLOW gives ELOOP, or ENOTDIR with O_DIRECTORY (open(2)).
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and (target := self._link(part)) is not None:
                self._follow(target, pending)
                return None
            _fail(error.errno or 0, self._path)
        if os.fstat(fd).st_dev != self._device:
            os.close(fd)
            _fail(errno.EXDEV, self._path)
        return fd

    def _link(self, part: bytes) -> bytes | None:
        try:
            return os.readlink(part, dir_fd=self._here)
        except OSError:
            return None

    def _follow(self, target: bytes, pending: list[bytes]) -> None:
        self._links_left -= 1
        if self._links_left < 0:
            _fail(errno.ELOOP, self._path)
        if target.startswith(b"/"):
            _fail(errno.EXDEV, self._path)
        pending.extend(target.split(b"/")[::-1])

    def _enter(self, part: bytes, fd: int) -> None:
        os.close(self._here)
        self._here = fd
        self._names.append(part)

    def _up(self) -> None:
        if not self._names:
            _fail(errno.EXDEV, self._path)
        names = self._names[:-1]
        os.close(self._here)
        self._here, self._names = os.dup(self._top), []
        for name in names:
            self._count()
            self._enter(name, os.open(name, _STEP, dir_fd=self._here))

    def _count(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            _fail(errno.ELOOP, self._path)


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


@contextlib.contextmanager
def opened_directory(path: Path | str, parent: int | None = None) -> Generator[int]:
    """Open a directory, not through a link, for the block; `path` is relative to `parent`."""
    fd = os.open(path, OPEN_DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def change_mode(name: str, directory: int | None, mode: int) -> None:
    """Change the mode of an entry of `directory`, which is not a link; None is the current directory.

    `os.chmod` follows a link that a process has put in the place of the entry: fchmodat(2) has no flags
    before Linux 6.6.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        # fchmod(2) refuses a descriptor of O_PATH; a link itself has no mode that can be changed.
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)
