"""The memory of a call, measured in `/proc` where the runner has no cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from banksman.tool_runner.sandbox.processes import descendants

_PROC = Path("/proc")
_BLOCK_BYTES = 512
_SHARED_ANONYMOUS = b" /dev/zero (deleted)"
"""How the kernel names mappings with MAP_SHARED and MAP_ANONYMOUS.

Their pages belong to a file without a name, and remain when no process has them in its page tables.
"""


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; unreadable values count as 0.

    It is the sum of the proportional set sizes, the page tables, and the pages of shared anonymous mappings.
    """
    shared = _SharedMemory()
    own = 0
    for each in descendants(pid):
        own += _own_bytes(each) + _page_table_bytes(each)
        shared.add(each)
    return own + shared.bytes()


def _own_bytes(pid: int) -> int:
    """Return the proportional set size without shared memory, which `_SharedMemory` counts."""
    sizes = _sizes(pid, "smaps_rollup")
    return sizes.get("Pss", 0) - sizes.get("Pss_Shmem", 0)


def _page_table_bytes(pid: int) -> int:
    return _sizes(pid, "status").get("VmPTE", 0)


def _sizes(pid: int, name: str) -> dict[str, int]:
    """Return the sizes in a file of `/proc/{pid}` with lines such as `Pss: 12 kB`, in bytes."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / name).read_text("utf-8", "replace").splitlines():
            if line.endswith(" kB"):
                label, _, value = line.partition(":")
                sizes[label] = int(value.split()[0]) * 1024
    return sizes


@dataclass
class _SharedMemory:
    """The files of shared anonymous mappings, each counted once."""

    _allocated: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Bytes by device and inode, where the kernel reports them (CAP_CHECKPOINT_RESTORE)."""
    _mapped: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Otherwise the highest sum of the mappings in one process."""

    def add(self, pid: int) -> None:
        """Add the mappings of a process."""
        mapped: dict[tuple[int, int], int] = {}
        for file, addresses, size in _shared_mappings(pid):
            if file not in self._allocated:
                with contextlib.suppress(OSError):
                    status = os.stat(_PROC / str(pid) / "map_files" / addresses)
                    self._allocated[file] = status.st_blocks * _BLOCK_BYTES
            mapped[file] = mapped.get(file, 0) + size
        for file, size in mapped.items():
            self._mapped[file] = max(size, self._mapped.get(file, 0))

    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum((self._mapped | self._allocated).values())


def _shared_mappings(pid: int) -> Iterator[tuple[tuple[int, int], str, int]]:
    """Yield device and inode, addresses and length of each shared anonymous mapping."""
    with contextlib.suppress(OSError):
        maps = (_PROC / str(pid) / "maps").read_bytes()
        # Most processes have none, and a hostile one may have 65,000 mappings.
        if _SHARED_ANONYMOUS not in maps:
            return
        for line in maps.splitlines():
            if line.endswith(_SHARED_ANONYMOUS):
                addresses, _, _, device, inode, _ = line.split(None, 5)
                begin, _, end = addresses.partition(b"-")
                major, _, minor = device.partition(b":")
                file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
                first, last = int(begin, 16), int(end, 16)
                # `map_files` has no leading zeros.
                yield file, f"{first:x}-{last:x}", last - first
