"""Wait for a run, and report its progress meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from banksman.contracts.ids import conversation_of
from banksman.gateway.live.feed import Feed
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.runs import FoundRun
from banksman.gateway.service.gateway import Gateway

Report = Callable[[int, str], Awaitable[None]]
"""Reports the number of steps so far, which only increases, and a description of the last step."""


async def followed(
    gateway: Gateway, caller: Caller, run_id: str, wait_s: float, report: Report | None, *, started: bool
) -> FoundRun:
    """Return a run once it has ended or needs a decision, or after `wait_s`.

    Args:
        gateway: The service.
        caller: Who may read the run.
        run_id: The run.
        wait_s: Seconds to wait.
        report: Receives the progress of the run; None if the client did not request progress.
        started: True for a run that this process has just accepted.

    Raises:
        NotFound: This tenant has no such run.
    """
    if not wait_s:
        return await gateway.runs.get(caller.tenant, run_id)
    if not started:
        await gateway.runs.get(caller.tenant, run_id)
    async with _reporting(gateway, caller, run_id, report):
        return await gateway.runs.wait(caller.tenant, run_id, wait_s, or_parked=True, started=started)


@asynccontextmanager
async def _reporting(
    gateway: Gateway, caller: Caller, run_id: str, report: Report | None
) -> AsyncGenerator[None]:
    """Report the steps of a run while the block runs."""
    if report is None:
        yield
        return
    steps = _Steps()
    feed = await gateway.feeds.open(
        caller.tenant, conversation_of(run_id), after_seq=None, log_epoch=None, detail="steps", sink=steps
    )
    feed.only(run_id)
    reporting = asyncio.create_task(_report(feed, steps, report))
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.wait((reporting,))
        await feed.close()


async def _report(feed: Feed, steps: _Steps, report: Report) -> None:
    await feed.follow(quiet=True)
    while True:
        count, text = await steps.next()
        await report(count, text)


class _Steps:
    """The sink of a feed. It stores only the last step: a slow client misses steps and takes no memory."""

    def __init__(self) -> None:
        self._count = 0
        self._text = ""
        self._new = asyncio.Event()

    def put(self, frame: str) -> None:
        """Store the description of a frame that is a step."""
        if text := _described(json.loads(frame)):
            self._count += 1
            self._text = text
            self._new.set()

    def put_delta(self, key: tuple[str, ...], frame: dict[str, Any]) -> None:
        """Ignore a piece of text."""

    async def room(self) -> None:
        """Return at once."""

    async def next(self) -> tuple[int, str]:
        """Wait for the next step; return the number of steps so far and its text."""
        await self._new.wait()
        self._new.clear()
        return self._count, self._text


def _described(frame: dict[str, Any]) -> str | None:
    match frame:
        case {"type": "iteration.started", "data": {"n": n, "max": most}}:
            return f"iteration {n} of {most}"
        case {"type": "tool_call.requested", "data": {"name": name}}:
            return f"calls {name}"
        case {"type": "workflow.progress", "data": {"step": step, "total": total, "message": message}}:
            return f"step {step} of {total}: {message}"
        case {"type": "approval.requested"}:
            return "waits for a decision"
        case {"type": "input.requested"}:
            return "waits for a value"
        case _:
            return None
