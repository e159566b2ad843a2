"""Run blocking functions in threads that may outlive their caller."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection, get_context
from typing import Any, TypeVar, cast

T = TypeVar("T")


class StillRunning(Exception):
    """A cancelled function continues in its thread, so its later effects are unknown."""


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in its own daemon thread; raise `StillRunning` if cancelled, and abandon it.

    Python cannot end a thread. A pool would lose a worker until the function returns, and would wait for it
    at the end of the process.
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


_PR_SET_PDEATHSIG = 1


async def in_process(function: Callable[[], T]) -> T:
    """Run a blocking function in a process forked from this one. Call it from the main thread.

    If cancelled, the process and all processes of its session are killed before this returns, so the function
    has no later effects. Raises `RuntimeError` if the process ends without a result.
    """
    # A spawned process imports the main module again, which may start another server.
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(function, receiving, sending), daemon=True)
    process.start()
    # Another process forked meanwhile must not inherit the pipe, or the end of this process would be missed.
    sending.close()
    reading = asyncio.create_task(in_thread(lambda: _received(receiving)))
    try:
        received = await asyncio.shield(reading)
    finally:
        _kill(process.pid)
        await asyncio.wait({reading})
        await in_thread(process.join)
        receiving.close()
    match received:
        case ("returned", value):
            return cast(T, value)
        case ("raised", BaseException() as error):
            raise error
        case _:
            raise RuntimeError(f"its process ended without a result (exit code {process.exitcode})")


def _received(receiving: connection.Connection) -> Any:
    try:
        return receiving.recv()
    except EOFError:
        return None


def _kill(pid: int | None) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid is not None:
                kill(pid, signal.SIGKILL)


def _work(
    function: Callable[[], object], receiving: connection.Connection, sending: connection.Connection
) -> None:
    # asyncio's handlers write to a socket that the parent reads: a signal here would stop the parent.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # In a session of its own, the processes that the function starts can be killed with it.
    os.setsid()
    # A killed parent cannot end this process, so the kernel does.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    receiving.close()
    try:
        outcome: tuple[str, object] = ("returned", function())
    except BaseException as error:
        outcome = ("raised", error)
    sending.send_bytes(_pickled(outcome))


def _pickled(outcome: tuple[str, object]) -> bytes:
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)  # some exceptions can be pickled but not unpickled
        return data
    except Exception as error:
        value = outcome[1]
        text = str(value) if isinstance(value, BaseException) else f"cannot be passed on: {error}"
        return pickle.dumps(("raised", RuntimeError(f"{type(value).__name__}: {text}")))
