"""Processes by their identity: a pid alone may belong to somebody else by now."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02


class ProcessIdentity(BaseModel):
    """A process, told apart from a later one with the same pid."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    pid: int
    started: str
    """The boot and the moment of its start, in the words of the operating system."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a process that runs; `started` is empty when it has ended already."""
        return cls(pid=pid, started=_started(pid) or "")

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return bool(self.started) and _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> bool:
        """End it and the group it leads at once; False when it had ended."""
        if not self.alive:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when it still runs after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _started(pid: int) -> str | None:
    """When a process began, or None when there is none; a zombie has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if _BOOT_ID.exists() else _started_by_ps(pid)
    return None if after_name[0] == "Z" else f"{_BOOT_ID.read_text().strip()} {after_name[19]}"


def _started_by_ps(pid: int) -> str | None:
    """The same where there is no /proc (macOS)."""
    told = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return told.stdout.strip() or None
