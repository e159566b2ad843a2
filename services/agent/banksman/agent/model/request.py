"""Sends a model request, falls back to the next model, and cancels the request with its run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.catalog import Providers
from banksman.contracts.errors import ProviderFailed, Refused
from banksman.runs.owner import Ownership
from banksman.runs.steps import deadline_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completion:
    model: str
    """`provider:model`."""
    provider: str
    reply: ModelReply


async def complete_with_fallback(
    providers: Providers,
    models: tuple[str, ...],
    request: ModelRequest,
    *,
    deltas: DeltaSink,
    deadline_s: float,
) -> Completion:
    """Send a request to the models in turn until one replies; `deadline_s` is for all together.

    Only an unavailable provider is skipped. A model with successors gets half of the time that is left.

    Raises:
        ProviderFailed: The last model is unavailable, or a model refused the request.
        BadInput: A model is unknown.
    """
    until = time.monotonic() + deadline_s
    for successors, model in zip(reversed(range(len(models))), models, strict=True):
        provider, name = providers.choose(model)
        left_s = max(0.1, until - time.monotonic())
        try:
            reply = await provider.complete(
                replace(request, model=name),
                deltas=deltas,
                deadline_s=left_s / 2 if successors else left_s,
            )
        except ProviderFailed as failure:
            if not failure.unavailable or not successors:
                raise
            logger.warning(
                "the model is unavailable, trying the next one: %s", failure, extra={"model": model}
            )
            await deltas.restart()
        else:
            return Completion(model, provider.name, reply)
    raise ValueError("models: at least one is expected")


async def unless_cancelled(owned: Ownership, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; None if the run is cancelled first, which also cancels `work`."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            notified = await _done_or_notified(owned, task)
            if notified and not task.done():
                # While the broker is away, the model continues. The commit of the reply finds a cancel.
                with contextlib.suppress(Refused):
                    await owned.refresh()
                run = owned.state.run
                ended = run is None or run.cancel is not None or owned.state.deleted
                # A reply that arrived meanwhile is charged, so it is recorded.
                if ended and not task.done():
                    return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _done_or_notified(owned: Ownership, task: asyncio.Task[Any]) -> bool:
    """Wait until `task` is done or a commit is reported; return whether others may have committed."""
    # The provider ends the request at the deadline. The wait is longer, so that its error is reported.
    until = deadline_of(owned.run) + timedelta(seconds=5)
    notified = asyncio.create_task(owned.ports.notifications.wait(owned.state, until))
    try:
        await asyncio.wait({task, notified}, return_when=asyncio.FIRST_COMPLETED)
        return notified.done() and notified.result()
    finally:
        notified.cancel()
