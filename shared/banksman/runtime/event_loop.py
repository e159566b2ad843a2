"""The event loop of every process: uvloop, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop does not support Windows, on which only clients and tool servers run.
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine of a process until it ends; return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
