"""Waits for a model and for a cancel at the same time."""

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
    """Return the result of `work`; None if the run is cancelled first, which also cancels `work`.

    Raises:
        Fenced: A higher claim owns the run.
    """
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await _done_or_notified(owned, task)
            if not task.done():
                # While the broker is away the model goes on: the commit of its reply finds a cancel too.
                with contextlib.suppress(Refused):
                    await owned.refresh()
                if owned.state.run is None or owned.state.run.cancel is not None or owned.state.deleted:
                    return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _done_or_notified(owned: Ownership, task: asyncio.Task[Any]) -> None:
    # The provider ends the request at the deadline; the wait is longer, so that its error is what is
    # reported.
    state, until = owned.state, deadline_of(owned.run) + timedelta(seconds=5)
    notified = asyncio.create_task(owned.ports.notifications.wait(state.tenant, state.conversation_id, until))
    try:
        await asyncio.wait({task, notified}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        notified.cancel()
