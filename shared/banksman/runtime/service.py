"""The life cycle of a service: settings, logs, start, ready, drain, end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.runtime import event_loop, failpoints, logs
from banksman.runtime.event_loop import watched_loop
from banksman.runtime.health import Health
from banksman.runtime.memory import Memory
from banksman.runtime.settings import ServiceSettings, load

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
