"""A loop that stands still is named with its stack, and counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator

import pytest
from prometheus_client import REGISTRY

from banksman.runtime.event_loop import BLOCKED_S, watched_loop
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(f"banksman_event_loop_{name}_total") or 0.0


def hold_up_the_loop(seconds: float) -> None:
    """Use the processor without a pause, as a search for a pattern does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class Lines(logging.Handler):
    """Collects log records; the records are written by another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Generator[Lines]:
    handler, logger = Lines(), logging.getLogger("banksman.runtime.event_loop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_loop_that_stands_still_is_named_with_its_stack(lines: Lines) -> None:
    stalls, seconds = counted("stalls"), counted("stalled_seconds")
    with watched_loop(lambda: True):
        hold_up_the_loop(4 * BLOCKED_S)

        async def was_counted() -> bool:
            return counted("stalls") > stalls

        await eventually(was_counted, WAIT_TIMEOUT_S)

    assert counted("stalled_seconds") - seconds > BLOCKED_S
    record = lines.records[0]
    assert record.levelno == logging.WARNING
    assert "hold_up_the_loop" in record.__dict__["stack"]


async def test_loop_that_waits_is_not_named(lines: Lines) -> None:
    with watched_loop(lambda: True):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * BLOCKED_S):
                await asyncio.Event().wait()

    assert lines.records == []


async def test_loop_of_a_process_that_starts_is_not_named(lines: Lines) -> None:
    with watched_loop(lambda: False):
        hold_up_the_loop(4 * BLOCKED_S)

    assert lines.records == []
