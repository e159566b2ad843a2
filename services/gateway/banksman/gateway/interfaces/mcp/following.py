"""Reports the progress of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from banksman.contracts.ids import conversation_of
from banksman.gateway.live.feed import ConversationFeed
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import Caller

StepReport = Callable[[int, str], Awaitable[None]]
"""Reports the number of steps so far, which only increases, and a description of the last step."""


@asynccontextmanager
async def reporting(
    feeds: Feeds, caller: Caller, run_id: str, report: StepReport | None
) -> AsyncGenerator[None]:
    """Report the steps of a run until the context ends; None reports nothing."""
    if report is None:
        yield
        return
    steps = _Steps()
    feed = await feeds.open(caller, conversation_of(run_id), after_seq=None, detail="steps", sink=steps)
    feed.only(run_id)
    following = asyncio.create_task(_report(feed, steps, report))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait((following,))
        await feed.close()


async def _report(feed: ConversationFeed, steps: _Steps, report: StepReport) -> None:
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

    def put(self, *frames: str) -> None:
        for frame in frames:
            if text := _described(json.loads(frame)):
                self._count += 1
                self._text = text
                self._new.set()

    def put_delta(self, key: tuple[str, ...], frame: dict[str, Any]) -> None:
        """Ignore a piece of text."""

    async def room(self) -> None:
        pass

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
