"""Publishes the output of a running call, a few pieces per second. Losing a piece is harmless."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Literal

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.calls import PROGRESS_AFTER_S, CallProgress, CallRequest
from banksman.contracts.errors import Unavailable
from banksman.runtime.failpoints import reach
from banksman.tool_runner.concurrency import in_background
from banksman.tool_runner.tools.base import OnProgress

PIECE_CHARS = 4096
"""Maximum characters of one piece; at most one piece per stream is published every `PIECE_EVERY_S`."""
PIECE_EVERY_S = 0.1
BACKLOG_CHARS = 64 * 1024
"""Maximum waiting characters of one stream; further output is dropped here and stays in the result."""

Stream = Literal["stdout", "stderr"]


class _Backlog:
    """Output that is not published yet."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._waiting: dict[Stream, str] = {}

    def add(self, stream: Stream, text: str) -> None:
        waiting = self._waiting.get(stream, "")
        self._waiting[stream] = waiting + text[: BACKLOG_CHARS - len(waiting)]
        self.changed.set()

    def pieces(self) -> Iterator[tuple[Stream, str]]:
        """Yield the next piece of each stream."""
        waiting, self._waiting = self._waiting, {}
        self.changed.clear()
        for stream, text in waiting.items():
            yield stream, text[:PIECE_CHARS]
            if rest := text[PIECE_CHARS:]:
                self.add(stream, rest)


@asynccontextmanager
async def progress(bus: Bus, runner: str, request: CallRequest) -> AsyncGenerator[OnProgress | None]:
    """Publish the progress of a call while the block runs.

    Yields the function that takes its output, or None if the request wants no progress.
    """
    if not request.progress:
        yield None
        return
    backlog = _Backlog()
    async with in_background(_publish_progress(bus, runner, request, backlog)):
        yield backlog.add


async def _publish_progress(bus: Bus, runner: str, request: CallRequest, backlog: _Backlog) -> None:
    subject = subjects.tool_progress(request.tenant, request.conversation_id)
    started = CallProgress(
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        tool_call_id=request.call.id,
        kind="started",
        runner=runner,
    )
    await asyncio.sleep(PROGRESS_AFTER_S)
    await _publish(bus, subject, started)
    while True:
        await backlog.changed.wait()
        await reach("runner.running")
        for stream, text in backlog.pieces():
            piece = started.model_copy(update={"kind": "output", "stream": stream, "text": text})
            await _publish(bus, subject, piece)
        await asyncio.sleep(PIECE_EVERY_S)


async def _publish(bus: Bus, subject: str, progress: CallProgress) -> None:
    # Progress is lossy: the stored result contains the output.
    with contextlib.suppress(Unavailable):
        await bus.publish(subject, progress.model_dump_json().encode())
