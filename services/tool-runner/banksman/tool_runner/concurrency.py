"""Concurrent tasks whose callers see a single error, where `asyncio.TaskGroup` raises an exception group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run `work` in a task during the block; raise its error at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await _cancel(task)
    if not task.cancelled() and (error := task.exception()):
        raise error


async def run_until(work: Coroutine[object, object, T], ended: Coroutine[object, object, None]) -> T | None:
    """Run both, and cancel the slower one. Return the result of `work`, or None if `ended` returns first."""
    task, end = asyncio.create_task(work), asyncio.create_task(ended)
    try:
        await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _cancel(task, end)


async def _cancel(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
