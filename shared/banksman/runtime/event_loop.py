"""The event loop of every process: uvloop, where it is installed, and the search for code that blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import Counter

try:
    from uvloop import new_event_loop
except ImportError:  # uvloop does not support Windows, on which only clients and tool servers run.
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

T = TypeVar("T")

logger = logging.getLogger(__name__)

BLOCKED_S = 0.25
"""Seconds without progress after which an event loop counts as blocked. In a process that was idle before, a
stall of less than 1.2 s may be missed, or of less than 5.2 s if it uses no processor time."""
_CPU_POLL_S = 0.1
"""Seconds between two reads of the processor time of a busy process."""
_PROBE_EVERY_S = 1.0
"""Seconds between two probes of a loop that seems free, and between two reads of the processor time of an
idle process. Ten reads per second would cost as much as all other work of an idle process."""
_PROBE_IDLE_EVERY_S = 5.0
"""Seconds between two probes of an idle process; each probe wakes it up."""
_BUSY, _IDLE = 0.2, 0.02
"""Shares of one processor: the minimum while code blocks the loop, and the maximum of an idle process."""
_REPORT_EVERY_S = 5.0
"""Minimum seconds between two stack traces in the log. The metrics count every stall."""
_MAX_FRAMES = 25
_STALLS = Counter("banksman_event_loop_stalls", f"Times that the event loop was blocked for {BLOCKED_S} s.")
_STALLED_S = Counter("banksman_event_loop_stalled_seconds", "Total seconds that the event loop was blocked.")


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


@contextmanager
def watched_loop(has_started: Callable[[], bool]) -> Generator[None]:
    """Watch the running event loop from a thread while the context is open.

    Args:
        has_started: Returns whether the process serves requests. Before that, imports block its loop, and no
            request waits.
    """
    watchdog = _Watchdog(asyncio.get_running_loop(), has_started)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.ended.set()


class _Watchdog(threading.Thread):
    def __init__(self, loop: asyncio.AbstractEventLoop, has_started: Callable[[], bool]) -> None:
        super().__init__(name="loop-watchdog", daemon=True)
        self.ended = threading.Event()
        self._loop = loop
        self._has_started = has_started
        self._watched = threading.get_ident()
        self._reported_at = float("-inf")

    def run(self) -> None:
        looked_cpu, probed_at = time.process_time(), float("-inf")
        pause_s = _CPU_POLL_S
        while not self.ended.wait(pause_s):
            began, cpu = time.monotonic(), time.process_time()
            used, looked_cpu = (cpu - looked_cpu) / pause_s, cpu
            pause_s = _CPU_POLL_S if used >= _IDLE else _PROBE_EVERY_S
            every_s = _PROBE_EVERY_S if used >= _IDLE else _PROBE_IDLE_EVERY_S
            is_due = used >= _BUSY or began - probed_at >= every_s
            if not is_due or not self._has_started():
                continue
            probed_at = began
            reached = threading.Event()
            try:
                self._loop.call_soon_threadsafe(reached.set)
            except RuntimeError:
                return  # The loop is closed.
            # A stall that began right after the last probe is found too.
            if reached.wait(BLOCKED_S - _CPU_POLL_S):
                continue
            waited = time.monotonic() - began
            if waited >= 2 * BLOCKED_S and time.process_time() - cpu < waited / 2:
                continue  # This thread did not run either, so the whole process was stopped.
            self._report(waited)
            while not reached.wait(1.0) and not self.ended.is_set():
                pass
            _STALLS.inc()
            _STALLED_S.inc(time.monotonic() - began)

    def _report(self, waited: float) -> None:
        # Taken now: after a call that held the interpreter lock returns, this thread continues at once.
        # A variable for all frames would be in one of them: the cycle would keep the values of the others.
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]  # documented
        if frame is None or time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        stack = "".join(traceback.format_stack(frame)[-_MAX_FRAMES:])
        logger.warning("the event loop is blocked", extra={"after_s": round(waited, 3), "stack": stack})
