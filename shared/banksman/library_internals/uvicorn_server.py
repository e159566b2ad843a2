"""A uvicorn server that leaves signals to the service, and that rarely wakes an idle process.

uvicorn 0.54 installs signal handlers, and polls ten times per second, which costs an idle process 0.14 % of a
core. Neither is a setting. This module overrides `Server.main_loop` and `capture_signals`, and uses `on_tick`
and `should_exit`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator

import uvicorn

_DATE_EVERY_S = 1.0


class QuietServer(uvicorn.Server):
    """A server that is ended by `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Accept no more connections; `serve` returns when the open ones have ended."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Update the `date` header every second until `stop`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_EVERY_S if self.config.date_header else None):
                    await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handlers."""
        yield
