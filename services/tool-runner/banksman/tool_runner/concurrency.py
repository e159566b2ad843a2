"""Two shapes that a task group has not: its error groups would hide the one error that the caller names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def beside(work: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run `work` next to the block and end it with the block; an error of `work` is raised at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await _ended(task)
    if not task.cancelled() and (error := task.exception()):
        raise error


async def unless(work: Coroutine[object, object, T], ended: Coroutine[object, object, None]) -> T | None:
    """The result of `work`, or None when `ended` returns first."""
    task, end = asyncio.create_task(work), asyncio.create_task(ended)
    try:
        await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await _ended(task, end)


async def _ended(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
