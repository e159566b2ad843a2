"""Run blocking functions in their own processes, which can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing import connection, get_context
from typing import Any, TypeVar, cast

from banksman.sdk.threads import in_thread

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


async def in_process(function: Callable[[], T]) -> T:
    """Run a blocking function in a process forked from this one, and return its result.

    If cancelled, the process and all processes of its session are killed before this returns, so the function
    has no later effects. Call it from the main thread.

    Raises:
        RuntimeError: The process ended without a result, or its result cannot be pickled.
        Exception: The function raised it.
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
    """Kill a process and its session."""
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
