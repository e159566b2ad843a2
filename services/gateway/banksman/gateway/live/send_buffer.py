"""The frames that wait to be sent to one client: bounded, with waiting deltas merged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

MAX_FRAMES = 512
MAX_BYTES = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Delta:
    """A waiting piece of text, to which the pieces after it are appended."""

    key: tuple[str, ...]
    frame: dict[str, Any]
    size: int

    def is_continued_by(self, key: tuple[str, ...], data: dict[str, Any]) -> bool:
        mine = self.frame["data"]
        return self.key == key and (
            "offset" not in mine or mine["offset"] + len(mine["text"]) == data["offset"]
        )


class Outbox:
    """A queue of frames, from many subscriptions to one writer.

    It overflows when more arrives while 512 entries or 4 MiB wait: it sets `overflowed` and drops further
    frames. The client then reconnects and resumes from its last event. The frames of one commit are one
    entry, so that a reader that keeps up with the commits receives each of them, however many events it has.
    """

    def __init__(
        self,
        *,
        max_frames: int = MAX_FRAMES,
        max_bytes: int = MAX_BYTES,
        on_overflow: Callable[[], None] | None = None,
    ) -> None:
        self.overflowed = asyncio.Event()
        self._on_overflow = on_overflow
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._waiting: deque[str | list[str] | _Delta] = deque()
        """Several frames of a commit are a list, the last one first."""
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied: asyncio.Event | None = None
        """Created on the first wait for room, because an `asyncio.Event` takes 1 KB of each websocket."""

    def put(self, *frames: str) -> None:
        """Queue the frames of one commit, or one other frame."""
        self._add(frames[0] if len(frames) == 1 else [*reversed(frames)], sum(map(len, frames)))

    def put_delta(self, key: tuple[str, ...], frame: dict[str, Any]) -> None:
        """Queue a piece of text, `frame["data"]["text"]`; append it to the last waiting piece of its key.

        A piece whose data has an `offset` is appended only if it follows that piece without a gap.
        """
        data = frame["data"]
        size = len(data["text"])
        for waiting in reversed(self._waiting):
            if isinstance(waiting, _Delta) and waiting.key == key:
                if waiting.is_continued_by(key, data) and self._has_room(len(self._waiting)):
                    waiting.frame["data"]["text"] += data["text"]
                    waiting.size += size
                    self._bytes += size
                    return
                break
        self._add(_Delta(key, frame, size), size)

    async def room(self) -> None:
        """Wait until the queue is at most half full."""
        while len(self._waiting) > self._max_frames // 2 or self._bytes > self._max_bytes // 2:
            self._emptied = self._emptied or asyncio.Event()
            self._emptied.clear()
            await self._emptied.wait()

    async def next(self) -> str:
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        first = self._waiting[0]
        if not isinstance(first, list) or len(first) == 1:
            self._waiting.popleft()
        if self._emptied is not None:
            self._emptied.set()
        if isinstance(first, _Delta):
            self._bytes -= first.size
            return to_json(first.frame).decode()
        frame = first if isinstance(first, str) else first.pop()
        self._bytes -= len(frame)
        return frame

    def clear(self) -> None:
        self._waiting.clear()

    @property
    def empty(self) -> bool:
        return not self._waiting

    def _add(self, entry: str | list[str] | _Delta, size: int) -> None:
        if self._has_room(len(self._waiting) + 1):
            self._waiting.append(entry)
            self._bytes += size
            self._filled.set()

    def _has_room(self, entries: int) -> bool:
        """Return whether a queue of so many entries is allowed; the first that is not overflows."""
        if not self.overflowed.is_set() and (entries > self._max_frames or self._bytes > self._max_bytes):
            self.overflowed.set()
            if self._on_overflow is not None:
                self._on_overflow()
        return not self.overflowed.is_set()
