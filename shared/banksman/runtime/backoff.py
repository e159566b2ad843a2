"""Repeated attempts with exponential backoff and jitter, so that processes do not retry in lockstep."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from banksman.contracts.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

SPREAD = 0.25
"""Maximum jitter, as a share of the nominal length of a pause."""


class Backoff:
    """Pauses between attempts: each is twice as long as the previous one, up to a maximum."""

    def __init__(self, first_s: float, longest_s: float, *, spread: float = SPREAD) -> None:
        """Start with the first pause; `spread` is the jitter as a share of a pause."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._spread = spread
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the length of the next pause in seconds, and double the following one."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        return pause_s * random.uniform(1 - self._spread, 1 + self._spread)

    def reset(self) -> None:
        self._next_s = self._first_s

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    again: Callable[[Exception], bool],
    backoff: Backoff,
    budget_s: float,
    failure: str,
    public: str | None = None,
) -> T:
    """Repeat `attempt` until it returns, raises an error that is final, or the budget is used up.

    The budget also ends an attempt that is still running; `tenacity` and `stamina` check their limits only
    between attempts.

    Args:
        attempt: Safe to repeat.
        again: Returns True for an error after which the attempt is repeated.
        budget_s: Seconds for all attempts and pauses together.
        failure: Beginning of the error message when the budget is used up: "STREAM.INFO: no response".
        public: The message for clients instead.

    Raises:
        Unavailable: The budget is used up; the message ends with the reason of the last failed attempt.
    """
    reason = "no connection"
    try:
        async with asyncio.timeout(budget_s):
            while True:
                try:
                    return await attempt()
                except Exception as error:
                    if not again(error):
                        raise
                    reason = str(error) or type(error).__name__
                    logger.info("%s yet: %s", failure, reason)
                await backoff.pause()
    except TimeoutError as error:
        raise Unavailable(f"{failure} within {budget_s:g} s: {reason}", public=public) from error


async def overlapping(
    attempt: Callable[[], Coroutine[Any, Any, T]], *, after_s: float, most: int, on_repeat: Callable[[], None]
) -> T:
    """Return the result of the first attempt that ends, and cancel the others; raise if that one failed.

    Args:
        attempt: Safe to run concurrently with itself.
        after_s: Seconds after which another attempt starts while the earlier ones still run.
        on_repeat: Called before each attempt but the first.
    """
    running = {asyncio.create_task(attempt())}
    try:
        while True:
            may_start = len(running) < most
            done, waiting = await asyncio.wait(
                running, timeout=after_s if may_start else None, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                # One of two attempts that end together may have failed because the other one succeeded.
                return min(done, key=lambda task: task.exception() is not None).result()
            on_repeat()
            running = {*waiting, asyncio.create_task(attempt())}
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for task in running:
            if not task.cancelled():
                # Otherwise asyncio logs that the exception was never retrieved.
                task.exception()
