"""The system call `openat2`, which Python does not have: a path opened under rules the kernel keeps.

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
    """What resolving a path may not do."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def openat2(directory: int, path: str, flags: int, resolve: Resolve, mode: int = 0) -> int:
    """Open `path` relative to the descriptor `directory`; returns a descriptor that closes at exec.

    Raises:
        OSError: EXDEV when the path leaves what is allowed, ELOOP for a link that is not, else as `open`.
        ValueError: when the path holds NUL.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    # EAGAIN: something was renamed on the way, so the kernel cannot say whether the path stayed inside.
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
