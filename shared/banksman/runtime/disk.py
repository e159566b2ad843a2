"""The room on a volume, the thresholds below which it is low or full, and failed writes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from banksman.runtime.http_get import HttpReply

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes, and whether they or the file entries are below the thresholds or cannot be written."""

    free_bytes: int
    low: bool
    full: bool
    state: str

    def described(self, what: str) -> str | None:
        """Return a sentence about a volume that is low, full or read-only; None if it has room."""
        return f"the disk of {what} {self.state}" if self.low else None


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """A volume is low or full below the smaller one of a number of bytes and a percentage of its size."""

    low_bytes: int
    low_percent: float
    full_bytes: int
    full_percent: float

    def room(self, directory: Path | str, *, writes: bool = False) -> Room:
        """Measure the volume of a directory; raise `OSError` if there is none.

        Args:
            writes: Whether this process writes to the directory. Then a read-only volume counts as full.
        """
        status = os.statvfs(directory)
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        # Some file systems have no fixed number of entries and report none.
        entries = 100 * status.f_favail / status.f_files if status.f_files else 100.0
        few = entries < self.low_percent
        full = free < min(self.full_bytes, total * self.full_percent / 100) or entries < self.full_percent
        low = free < min(self.low_bytes, total * self.low_percent / 100)
        if writes and (failure := _write_failure(directory)):
            return Room(free, True, True, f"cannot be written: {failure}")
        short = f"{free} of {total} bytes" if low else f"{status.f_favail} of {status.f_files} file entries"
        return Room(
            free, low or few or full, full, f"is {'full' if full else 'nearly full'}: {short} are free"
        )


def _write_failure(directory: Path | str) -> str | None:
    """Return why a volume is read-only, as the kernel makes one whose disk fails; None if it can be written.

    The flags of a volume do not show every such state, so this sets the times of the directory as they are.
    """
    found = os.stat(directory)
    try:
        os.utime(directory, ns=(found.st_atime_ns, found.st_mtime_ns))
    except PermissionError:
        return None
    except OSError as error:
        return error.strerror
    return None


def write_error(health: HttpReply) -> str | None:
    """Return the failed write that `/healthz` of nats-server reports; None without one.

    The supervisor of `banksman up` calls it too, and must not import the client of NATS.
    """
    text = "" if health.ok else str(json.loads(health.body).get("error"))
    return text if "write error" in text else None
