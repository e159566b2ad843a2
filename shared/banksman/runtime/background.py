"""Background tasks of a process: named, restarted after an exception, and visible when they keep failing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from prometheus_client import Counter

from banksman.contracts.errors import BanksmanError
from banksman.runtime.backoff import Backoff
from banksman.runtime.failpoints import reach_task

logger = logging.getLogger(__name__)

Step = Callable[[], Awaitable[None]]

RETRY_S = 1.0
"""Seconds until work is repeated after an expected fault, such as an unreachable broker."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds until work is repeated after an unexpected exception."""
UNREADY_FAILURES = 3
"""Number of consecutive unexpected exceptions after which the process is not ready."""
STEADY_S = 30.0
"""Seconds without an exception after which a task counts as working, even while its work still runs."""

_RESTARTS = Counter(
    "banksman_background_restarts", "Restarts of a background task after an unexpected exception.", ["task"]
)


class BackgroundTask:
    def __init__(self, name: str, work: Step, wait: Step | None, steady_s: float) -> None:
        self.name = name
        self._work = work
        self._wait = wait
        self._steady_s = steady_s
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._failures = 0
        self._last_error = ""
        self._last_fault = ""
        """The last expected fault since the task worked."""
        self._recovery: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._supervise(), name=name)

    @property
    def problem(self) -> str | None:
        """The failures and the last error while the task keeps failing; None while it works."""
        if self._failures < UNREADY_FAILURES:
            return None
        return f"background task {self.name!r} failed {self._failures} times in a row: {self._last_error}"

    async def ended(self, within_s: float) -> None:
        await asyncio.wait([self._task], timeout=within_s)

    def cancel(self) -> None:
        self._task.cancel()
        self._await_recovery(None)

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended. Safe to call twice."""
        self.cancel()
        await asyncio.wait([self._task])

    def when_ended(self, callback: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: callback())

    async def _supervise(self) -> None:
        waits = self._wait is not None
        while True:
            try:
                if waits and self._wait is not None:
                    await self._wait()
                await reach_task(self.name)
                await self._work()
            except Exception as error:
                if self._task.cancelling():
                    # nats-py replaces a cancellation by its own error while its connection is closed.
                    raise asyncio.CancelledError from error
                await self._pause_after(error)
                waits = False
            else:
                self._recovered()
                if self._wait is None:
                    return
                waits = True

    async def _pause_after(self, error: Exception) -> None:
        if isinstance(error, BanksmanError):
            # The broker is unreachable or storage is full; the checks of connection and streams show it.
            if str(error) != self._last_fault:
                logger.warning("background task %s: %s", self.name, error)
            self._last_fault = str(error)
            await asyncio.sleep(RETRY_S)
        else:
            await self._back_off(error)

    async def _back_off(self, error: Exception) -> None:
        self._await_recovery(None)
        self._failures += 1
        self._last_error = f"{type(error).__name__}: {error}"
        _RESTARTS.labels(self.name).inc()
        pause_s = self._backoff.next_s()
        logger.exception("background task %s failed; it restarts in %.1f s", self.name, pause_s)
        await asyncio.sleep(pause_s)
        self._await_recovery(self._steady_s)

    def _await_recovery(self, within_s: float | None) -> None:
        """Count the task as working in `within_s` seconds; None cancels that."""
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if within_s is not None:
            self._recovery = asyncio.get_running_loop().call_later(within_s, self._recovered)

    def _recovered(self) -> None:
        self._await_recovery(None)
        if self._failures:
            logger.info("background task %s works again", self.name)
        self._failures = 0
        self._last_fault = ""
        self._backoff.reset()


class Background:
    """The background tasks of one process.

    A bare task that raises ends silently, and the process continues without it. A task that is started here
    is restarted after every exception. Unexpected exceptions are logged and counted, and a task that keeps
    failing makes the process not ready. The component that starts a task stops it.
    """

    def __init__(self, *, steady_s: float = STEADY_S) -> None:
        """Create an empty set; a task works again after `steady_s` seconds without an exception."""
        self._steady_s = steady_s
        self._tasks: set[BackgroundTask] = set()

    def run(self, name: str, loop: Step) -> BackgroundTask:
        """Run an endless loop that is safe to start again, and run it again after each exception.

        The task ends when `loop` returns. The log, the metric and the readiness report contain its `name`.
        """
        return self._start(BackgroundTask(name, loop, None, self._steady_s))

    def repeat(self, name: str, work: Step, *, wait: Step) -> BackgroundTask:
        """Repeat `wait` and `work` until the task is stopped; after an exception, repeat `work` soon.

        `wait` returns when the work is due. The log, the metric and the readiness report contain the `name`.
        """
        return self._start(BackgroundTask(name, work, wait, self._steady_s))

    @asynccontextmanager
    async def running(self, name: str, loop: Step) -> AsyncGenerator[None]:
        """Run an endless loop as `run` does while the context is open."""
        task = self.run(name, loop)
        try:
            yield
        finally:
            await task.stop()

    async def problem(self) -> str | None:
        found = sorted(problem for task in self._tasks if (problem := task.problem))
        return "; ".join(found) or None

    def _start(self, task: BackgroundTask) -> BackgroundTask:
        self._tasks.add(task)
        task.when_ended(lambda: self._tasks.discard(task))
        return task


def first_error(error: BaseException) -> BaseException:
    """Return the first error in nested groups, so that a caller of a task group sees its own type."""
    if isinstance(error, BaseExceptionGroup):
        return first_error(cast(BaseExceptionGroup[BaseException], error).exceptions[0])
    return error
