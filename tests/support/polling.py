"""Waits for states that send no event: another process, a file, a log line, a kernel table.

These are the only waits of the suite that do not end on an event. Everything else awaits the event itself.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar, overload

from tests.support.timeouts import WAIT_TIMEOUT_S

SHORTEST_INTERVAL_S = 0.005
LONGEST_INTERVAL_S = 0.05
"""Seconds between two checks: most waits end at once; a long one leaves the CPU to the awaited process."""
GROWTH = 1.5

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    timeout_s: float = WAIT_TIMEOUT_S,
    *,
    interval_s: float | None = None,
    failure: Callable[[], object] = lambda: "the condition did not become true",
) -> T:
    """Return the first true value of `condition`.

    Args:
        condition: Checked repeatedly, and at least once.
        timeout_s: Seconds until the wait fails.
        interval_s: Seconds between two checks; None for an interval that grows.
        failure: The reason in the error message after a timeout.

    Raises:
        TimeoutError: The condition stayed false; the message has the reason and the time.
    """
    deadline = time.monotonic() + timeout_s
    intervals = _intervals(interval_s)
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure()} (within {timeout_s:g} s)")
        time.sleep(next(intervals))
    return found


def _intervals(fixed_s: float | None) -> Iterator[float]:
    interval_s = fixed_s or SHORTEST_INTERVAL_S
    while True:
        yield interval_s
        if fixed_s is None:
            interval_s = min(GROWTH * interval_s, LONGEST_INTERVAL_S)


@overload
async def eventually(
    condition: Callable[[], Awaitable[T | None]],
    timeout_s: float = ...,
    *,
    interval_s: float | None = ...,
    failure: Callable[[], object] = ...,
) -> T: ...
@overload
async def eventually(
    condition: Callable[[], T | None],
    timeout_s: float = ...,
    *,
    interval_s: float | None = ...,
    failure: Callable[[], object] = ...,
) -> T: ...
async def eventually(
    condition: Callable[[], object],
    timeout_s: float = WAIT_TIMEOUT_S,
    *,
    interval_s: float | None = None,
    failure: Callable[[], object] = lambda: "the condition did not become true",
) -> object:
    """Like `wait_until`, without blocking the event loop; `condition` may be a coroutine function.

    Raises:
        TimeoutError: The condition stayed false; the message has the reason and the time.
    """
    deadline = time.monotonic() + timeout_s
    intervals = _intervals(interval_s)
    while True:
        value = condition()
        found = await value if inspect.isawaitable(value) else value
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure()} (within {timeout_s:g} s)")
        await asyncio.sleep(next(intervals))


async def scripted_delay(seconds: float) -> None:
    """Wait because the delay is the input of a test: a slow server, a pause of a user, a random moment.

    Never use it to wait until something has happened.
    """
    await asyncio.sleep(max(0.0, seconds))


def scripted_pause(seconds: float) -> None:
    """Like `scripted_delay`, in code without a loop."""
    time.sleep(max(0.0, seconds))


async def let_others_run() -> None:
    """Give the other tasks of the loop one turn."""
    await asyncio.sleep(0)
