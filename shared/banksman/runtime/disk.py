"""The room on a volume, the thresholds below which it is low or full, and failed writes of nats-server."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from banksman.runtime.http_get import HttpReply

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Room:
    """Free and total bytes, and whether they are below the thresholds."""

    free_bytes: int
    total_bytes: int
    low: bool
    full: bool
    few_files: bool = False
    """Whether file entries and not bytes are short."""

    def described(self, what: str) -> str | None:
        """Return a sentence about a volume that is low or full; None if it has room."""
        if not self.low:
            return None
        short = "file entries" if self.few_files else f"{self.free_bytes} of {self.total_bytes} bytes"
        return f"the disk of {what} is {'full' if self.full else 'nearly full'}: {short} are free"


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """A volume is low or full below the smaller one of a number of bytes and a percentage of its size."""

    low_bytes: int
    low_percent: float
    full_bytes: int
    full_percent: float

    def room(self, directory: Path | str) -> Room:
        """Measure the volume of a directory; raise `OSError` if there is none."""
        status = os.statvfs(directory)
        free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        # Some file systems have no fixed number of entries and report none.
        entries = 100 * status.f_favail / status.f_files if status.f_files else 100.0
        low = free < min(self.low_bytes, total * self.low_percent / 100)
        full = free < min(self.full_bytes, total * self.full_percent / 100)
        few = entries < self.low_percent
        full = full or entries < self.full_percent
        return Room(free, total, low or few or full, full, few and not low)


def write_error(health: HttpReply) -> str | None:
    """Return the failed write that `/healthz` of nats-server reports; None without one.

    The supervisor of `banksman up` calls it too, and must not import the client of NATS.
    """
    text = "" if health.ok else str(json.loads(health.body).get("error"))
    return text if "write error" in text else None
