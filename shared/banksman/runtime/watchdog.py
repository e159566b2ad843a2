"""Find the code that blocks the event loop of a process."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

from prometheus_client import Counter

logger = logging.getLogger(__name__)

STILL_S = 0.25
"""Seconds without progress after which an event loop counts as standing still. In a process that was idle
before, a stall of less than 1.2 s may be missed, and one of less than 5.2 s if it uses no processor time."""
_LOOK_EVERY_S = 0.1
"""Seconds between two reads of the processor time of a busy process."""
_PROBE_EVERY_S = 1.0
"""Seconds between two probes of a loop that nothing seems to hold up, and between two looks at an idle
process. Ten looks per second would cost as much as everything else that it does."""
_PROBE_IDLE_EVERY_S = 5.0
"""Seconds between two probes of a process that is idle. Each wakes it up."""
_BUSY, _IDLE = 0.2, 0.02
"""Parts of a processor: what a process uses at least while code holds up its loop, and what an idle one uses
at most."""
_REPORT_EVERY_S = 5.0
"""Minimum seconds between two stack traces in the log. The metrics count every stall."""
_MAX_FRAMES = 25

_STALLS = Counter("banksman_event_loop_stalls", f"Times that the event loop stood still for {STILL_S} s.")
_STALLED_S = Counter("banksman_event_loop_stalled_seconds", "Seconds that the event loop stood still in all.")


@contextmanager
def watched_loop(has_started: Callable[[], bool]) -> Generator[None]:
    """Watch the running event loop from a thread while the context is open.

    Args:
        has_started: Returns whether the process serves others. Before, imports hold up its loop, and nothing
            waits for it.
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
        pause_s = _LOOK_EVERY_S
        while not self.ended.wait(pause_s):
            began, cpu = time.monotonic(), time.process_time()
            used, looked_cpu = (cpu - looked_cpu) / pause_s, cpu
            pause_s = _LOOK_EVERY_S if used >= _IDLE else _PROBE_EVERY_S
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
            if reached.wait(STILL_S - _LOOK_EVERY_S):
                continue
            waited = time.monotonic() - began
            if waited >= 2 * STILL_S and time.process_time() - cpu < waited / 2:
                continue  # This thread did not run either, and nothing else did: the process was stopped.
            self._report(waited)
            while not reached.wait(1.0) and not self.ended.is_set():
                pass
            _STALLS.inc()
            _STALLED_S.inc(time.monotonic() - began)

    def _report(self, waited: float) -> None:
        # Taken now: a call that holds the interpreter lets this thread continue right after it returns.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented; no other way
        frame = frames.get(self._watched)
        if frame is None or time.monotonic() - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = time.monotonic()
        stack = "".join(traceback.format_stack(frame)[-_MAX_FRAMES:])
        logger.warning("the event loop is blocked", extra={"after_s": round(waited, 3), "stack": stack})
