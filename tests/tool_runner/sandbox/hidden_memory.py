"""Programs with memory that no rlimit counts, and that is in no process's resident set."""

from __future__ import annotations

_SHARED = """
import ctypes, mmap, signal
size, chunk = 1 << 30, 1 << 20
held = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
# The first mapping of the file becomes one page long.
address = ctypes.addressof(ctypes.c_char.from_buffer(held))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ) == 0
for start in range(chunk, size, chunk):
    held[start : start + chunk] = bytes(chunk)
    held.madvise(mmap.MADV_DONTNEED, start, chunk)
signal.pause()
"""

_PAGE_TABLES = """
import mmap, signal
step, size = 2 << 20, 256 << 30
held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
for start in range(0, size, step):
    held[start]
signal.pause()
"""

HIDDEN_MEMORY = {"shared mappings outside of page tables": _SHARED, "page tables": _PAGE_TABLES}
"""Each needs more than 256 MiB."""
