"""Waits for events and tasks with a time limit. They return at the limit, and raise nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Protocol


class Waitable(Protocol):
    async def wait(self) -> Any: ...


async def set_within(event: Waitable, timeout_s: float | None) -> None:
    """Wait until an event is set, for at most `timeout_s` seconds; None waits without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def any_set(*events: Waitable, timeout_s: float | None = None) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


async def all_ended(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait until all tasks have ended, also those that are added meanwhile."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while tasks:
                await asyncio.wait(tasks)
