"""The system call `openat2`, which Python lacks: the kernel enforces rules on path resolution.

https://man7.org/linux/man-pages/man2/openat2.2.html
"""

from __future__ import annotations

import ctypes
import errno
import os
from enum import IntFlag

_SYS_OPENAT2 = 437
"""The same number on every architecture."""

_ATTEMPTS = 16


class Resolve(IntFlag):
    """Restrictions on the resolution of a path."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def openat2(directory: int, path: str, flags: int, resolve: Resolve, mode: int = 0) -> int:
    """Open `path` relative to the descriptor `directory`; return a descriptor with O_CLOEXEC.

    Raises:
        OSError: EXDEV if the path leaves the allowed tree, ELOOP for a refused link, otherwise as `open`.
        ValueError: the path contains NUL.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    # EAGAIN: a directory on the path was renamed meanwhile, so the kernel cannot prove that the path stayed
    # below (openat2(2)).
    number = 0
    for _ in range(_ATTEMPTS):
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
