"""What `banksman up` does about a full disk: it waits, says so once, and continues when there is space.

A stream of nats-server that could not be written refuses every write until the server restarts.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from banksman.cli.local.child_process import ManagedProcess
from banksman.cli.local.screen import Screen
from banksman.cli.state import DataDir, Instance
from banksman.runtime.backoff import Backoff
from banksman.runtime.disk import DiskLimits, write_error
from banksman.runtime.http_get import http_get

T = TypeVar("T")

CHECK_S = 2.0
LONGEST_PAUSE_S = 60.0
_TIMEOUT_S = 2.0


class RunFile:
    """Writes the run file, and again while the disk refuses it."""

    def __init__(self, data: DataDir, screen: Screen) -> None:
        self._data = data
        self._screen = screen
        self._unwritten: Instance | None = None

    def write(self, instance: Instance) -> None:
        failed_before = self._unwritten is not None
        self._unwritten = None
        try:
            self._data.write(instance)
        except OSError as error:
            self._unwritten = instance
            if not failed_before:
                text = f"{self._data.run_file}: {error.strerror}; it is written again later"
                self._screen.report("warning", "disk", text=text)

    def retry(self) -> None:
        if self._unwritten is not None:
            self.write(self._unwritten)


def when_writable(screen: Screen, act: Callable[[], T]) -> T:
    """Call a function, and again while its disk is full or read-only."""
    reported = False
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            if not reported:
                screen.report("warning", "disk", text=f"{error}; `banksman up` waits until it can write")
            reported = True
        time.sleep(CHECK_S)


class StoreWatch:
    """Restarts nats-server when it cannot write although its volume has room."""

    def __init__(self, server: ManagedProcess, store: Path, limits: DiskLimits, screen: Screen) -> None:
        self._server = server
        self._store = store
        self._limits = limits
        self._screen = screen
        self._reported = False
        # A restart does not mend a disk that fails although it has room.
        self._pauses = Backoff(CHECK_S, LONGEST_PAUSE_S, spread=0)

    async def run(self, also: Callable[[], None]) -> None:
        """Watch until cancelled; call `also` after each look."""
        while True:
            await asyncio.sleep(await self._look())
            also()

    async def _look(self) -> float:
        """Look once; return the seconds until the next look."""
        failure = await write_failure(self._server.spec.ready_url)
        if failure is None:
            self._reported = False
            self._pauses.reset()
            return CHECK_S
        if self._has_room():
            self._report(f"restarts because it cannot write: {failure}")
            self._server.restart()
            return self._pauses.next_s()
        if not self._reported:
            self._reported = True
            self._report(f"cannot write, and waits until its disk can be written: {failure}")
        return CHECK_S

    def _has_room(self) -> bool:
        try:
            return not self._limits.room(self._store, writes=True).full
        except OSError:
            return False

    def _report(self, text: str) -> None:
        self._screen.report("warning", "nats", text=text)


async def write_failure(health_url: str) -> str | None:
    """Return the write error that nats-server reports; None if it reports none or does not respond."""
    try:
        return write_error(await http_get(health_url, timeout_s=_TIMEOUT_S))
    except (OSError, ValueError):
        return None
