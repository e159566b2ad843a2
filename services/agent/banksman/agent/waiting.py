"""Waiting for a model and for word from outside at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from banksman.contracts.errors import Refused
from banksman.runs.owner import Ownership
from banksman.runs.steps import deadline_of

T = TypeVar("T")


async def unless_cancelled(owned: Ownership, work: Coroutine[Any, Any, T]) -> T | None:
    """Wait for `work`, and for word that the run was cancelled; None when that came first.

    Raises:
        Fenced: a higher claim owns the run.
    """
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await _done_or_news(owned, task)
            if not task.done():
                # Without an answer the model goes on: the commit of its reply finds out.
                with contextlib.suppress(Refused):
                    await owned.refresh()
                if owned.state.run is None or owned.state.run.cancel is not None or owned.state.deleted:
                    return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _done_or_news(owned: Ownership, task: asyncio.Task[Any]) -> None:
    state, until = owned.state, deadline_of(owned.run) + timedelta(seconds=5)
    attention = owned.ports.attention
    news = asyncio.create_task(attention.wait(state.tenant, state.conversation_id, until))
    try:
        await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        news.cancel()
