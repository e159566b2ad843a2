"""Run blocking functions in threads that may outlive their caller."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class StillRunning(Exception):
    """A cancelled function continues in its thread, so its later effects are unknown."""


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in its own daemon thread. If cancelled, abandon the thread.

    Python cannot end a thread. A pool would lose a worker until the function returns, and would wait for it
    at the end of the process.

    Raises:
        StillRunning: The call was cancelled while the function was running.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)  # type: ignore[arg-type]  # a value is None only where T is
        else:
            done.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function)
        except BaseException as raised:
            # A future does not accept StopIteration.
            error = RuntimeError("StopIteration") if isinstance(raised, StopIteration) else raised
        try:
            loop.call_soon_threadsafe(finish, value, error)
        except RuntimeError:
            return  # the loop has ended, so there is no caller

    threading.Thread(target=work, daemon=True, name=getattr(function, "__name__", "tool")).start()
    try:
        return await done
    except asyncio.CancelledError:
        if done.cancelled():
            raise StillRunning from None
        raise
