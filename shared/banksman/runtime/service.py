"""The life cycle of a service: settings, logs, start, ready, drain, end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.runtime import event_loop, failpoints, logs
from banksman.runtime.event_loop import watched_loop
from banksman.runtime.health import Health
from banksman.runtime.settings import ServiceSettings, load

EVERY_S = 10.0
_GROWTH, _CHANGED = 1.2, 0.05
_STATM = Path("/proc/self/statm")


class Memory:
    """Returns freed memory to the kernel: after a peak, glibc keeps what lies below memory that is in use."""

    def __init__(self) -> None:
        self._least = self._collected = 0.0
        """Fewest bytes so far after memory was returned; bytes after the last search for cycles."""
        # Only glibc has it; https://man7.org/linux/man-pages/man3/malloc_trim.3.html
        trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trim = trim if _STATM.exists() else None

    async def watch(self) -> None:
        while True:
            await self.give_back()
            await asyncio.sleep(EVERY_S)

    async def give_back(self) -> None:
        """Return freed memory if the process has grown by a fifth. It takes 0.3 ms if there is none.

        If the memory has changed and is not back then, objects are freed that refer to each other: this takes
        0.1 s, and the collector itself would do it only when many objects are added.
        """
        if self._trim is None or _resident_bytes() < _GROWTH * self._least:
            return
        await asyncio.to_thread(self._trim, 0)
        left = _resident_bytes()
        if left > _GROWTH * self._least and abs(left - self._collected) > _CHANGED * left:
            gc.collect()
            await asyncio.to_thread(self._trim, 0)
            self._collected = _resident_bytes()
        self._least = min(self._least or float("inf"), _resident_bytes())


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


logger = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


@dataclass
class ServiceProcess:
    """The process of a service: its health, and the signal that stops it."""

    health: Health
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by SIGTERM or SIGINT: accept no new work, finish or hand over running work, and return."""

    def ready(self) -> None:
        """End the start phase: from now on, readiness depends on the checks."""
        self.health.started = True
        logger.info("ready", extra={"after_s": round(self.health.uptime_s, 3)})

    async def keep_starting(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve until `stop`: repeat a start that fails because the broker cannot be reached."""
        while not self.stop.is_set():
            try:
                await serve()
            except Unavailable as error:
                if self.health.started:
                    raise
                logger.warning("not ready: %s", error)

    def drain(self) -> None:
        """Start the drain: the service is no longer ready, and `stop` is set."""
        self.health.draining = True
        self.stop.set()


S = TypeVar("S", bound=ServiceSettings)
Main = Callable[[S, ServiceProcess], Awaitable[None]]


def run(name: str, settings_class: type[S], main: Main[S]) -> int:
    """Run a service until it ends or is stopped.

    Returns:
        The exit code: 0 after a drain, 1 after a failure, 2 for an invalid setting.
    """
    try:
        failpoints.arm(os.environ)
        settings = load(settings_class)
    except BanksmanError as error:
        print(f"banksman {name}: {error}", file=sys.stderr)  # noqa: T201  # logs are not configured yet
        return EXIT_USAGE
    logs.configure(settings.log, service=name)
    try:
        event_loop.run(_serve(name, settings, main))
    except (BanksmanError, OSError) as error:
        logger.error("stopped: %s", error)
        return EXIT_FAILED
    return EXIT_OK


async def _serve(name: str, settings: S, main: Main[S]) -> None:
    process = ServiceProcess(Health(name))
    loop = asyncio.get_running_loop()
    for received in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(received, process.drain)
    memory = process.health.background.running("memory", Memory().watch)
    async with memory:
        with watched_loop(lambda: process.health.started):
            await main(settings, process)
