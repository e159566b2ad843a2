"""Finds the files of a call that no directory lists: deleted files that its processes have open or mapped."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from banksman.tool_runner.sandbox.processes import descendants

_PROC = Path("/proc")
_BLOCK_BYTES = 512
_SHARED_MEMORY = b"/dev/zero (deleted)"
"""The path of anonymous shared memory, to which the limit of memory applies."""
_PARKED_EXAMINATIONS = 4
"""Consecutive examinations that find descriptors in sockets, after which these count as parked there."""


@dataclass(frozen=True, slots=True)
class HiddenFiles:
    """The hidden files of the processes of one call at one moment."""

    unlinked_bytes: int
    """Allocated bytes of deleted files that are open or mapped."""
    in_sockets: bool
    """True if descriptors wait in a unix socket. Such files are in no process (SCM_RIGHTS, unix(7))."""
    written_bytes: int
    """Bytes that living processes and their ended children have written to files on disks (proc(5))."""


class HiddenFilesWatch:
    """Decides when the hidden files of one call are too large."""

    def __init__(self, max_bytes: int, max_file_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_file_bytes = max_file_bytes
        self._examinations_in_sockets = 0

    def exceeded(self, pid: int) -> bool:
        """Examine a process and its descendants; return whether they hold more than `max_bytes`.

        Files in sockets cannot be measured. A program that passes descriptors on receives them soon. If
        some are in sockets at each of several examinations, the call may hold all that it has written.
        """
        found = hidden_files(pid, self._max_file_bytes)
        self._examinations_in_sockets = self._examinations_in_sockets + 1 if found.in_sockets else 0
        parked = self._examinations_in_sockets >= _PARKED_EXAMINATIONS
        return found.unlinked_bytes > self._max_bytes or (parked and found.written_bytes > self._max_bytes)


def hidden_files(pid: int, max_file_bytes: int) -> HiddenFiles:
    """Examine a process and its descendants; unreadable processes count as 0.

    Args:
        pid: The process at the top.
        max_file_bytes: The assumed size of a deleted, mapped file if this process may not examine it. Only
            a privileged process may (CAP_CHECKPOINT_RESTORE, proc(5)).
    """
    held: dict[tuple[int, int], int] = {}
    in_sockets, written_bytes = False, 0
    for each in descendants(pid):
        process = _PROC / str(each)
        in_sockets |= _note_open(process, held)
        _note_mapped(process, held, max_file_bytes)
        written_bytes += _written_bytes(process)
    return HiddenFiles(sum(held.values()), in_sockets, written_bytes)


def _note_open(process: Path, held: dict[tuple[int, int], int]) -> bool:
    """Add deleted files that are open; return whether descriptors wait in a socket of the process."""
    waiting = False
    with contextlib.suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                if stat.S_ISSOCK(status.st_mode):
                    waiting |= _descriptors_wait(process / "fdinfo" / entry.name)
                else:
                    _note(status, held)
    return waiting


def _descriptors_wait(fdinfo: Path) -> bool:
    """Return whether the receive queue of a socket contains descriptors (Linux 5.6 and newer)."""
    for line in fdinfo.read_text().splitlines():
        if line.startswith("scm_fds:"):
            return int(line.split()[1]) > 0
    return False


def _note_mapped(process: Path, held: dict[tuple[int, int], int], max_file_bytes: int) -> None:
    """Add deleted files that are mapped. The length of a mapping says nothing about the size of its file."""
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_bytes().splitlines():
            if not line.endswith(b" (deleted)"):
                continue
            addresses, _, _, device, inode, path = line.split(None, 5)
            major, _, minor = device.partition(b":")
            file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            if path == _SHARED_MEMORY or file in held:
                continue
            # The names in map_files have no leading zeros, the addresses in maps have (proc(5)).
            begin, _, end = addresses.partition(b"-")
            try:
                _note((process / "map_files" / f"{int(begin, 16):x}-{int(end, 16):x}").stat(), held)
            except PermissionError:
                held[file] = max_file_bytes


def _note(status: os.stat_result, held: dict[tuple[int, int], int]) -> None:
    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
        held[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES


def _written_bytes(process: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in (process / "io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    return 0
