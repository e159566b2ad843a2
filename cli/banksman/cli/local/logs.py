"""The output of a child process: written to its log file, with warnings reported to the screen."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, cast

MAX_FILE_BYTES = 5 * 1024 * 1024
"""A log file is rotated before it would exceed this size."""
KEPT_FILES = 2
"""Rotated files that are kept."""
MAX_LINE_BYTES = 64 * 1024
"""Longer lines are split."""
_LAST_LINES = 20
_SHOWN_CHARS = 300

# Only errors of nats-server are shown. It warns about every stream whose state it rebuilds after a crash.
_NATS_ERROR = re.compile(r"^\[\d+\] \S+ \S+ \[(?:ERR|FTL)\] (.*)")
_LEVELS = frozenset({"warning", "error", "critical"})


class ChildLog:
    """The log of one process across its restarts."""

    def __init__(self, file: Path, on_warning: Callable[[str], None]) -> None:
        self._handler = RotatingFileHandler(
            file, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8", errors="replace"
        )
        self._on_warning = on_warning
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    @property
    def last_line(self) -> str:
        """The last line that is not blank, in readable form and shortened; empty if there is none."""
        return next((_readable(line) for line in reversed(self._last) if line.strip()), "")[:_SHOWN_CHARS]

    def write(self, line: str) -> None:
        """Write a line to the file, and report it if it is a warning."""
        self._last.append(line)
        self._handler.emit(logging.makeLogRecord({"msg": "%s", "args": (line,)}))
        if warning := _warning(line):
            self._on_warning(warning[:_SHOWN_CHARS])

    async def pump(self, descriptor: int) -> None:
        """Write the lines of a pipe until its last writer closes it; then close the pipe."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            while line := await _next_line(reader):
                self.write(line.decode(errors="replace").rstrip("\r\n"))
        finally:
            transport.close()

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, or its next `MAX_LINE_BYTES`; empty at the end of the stream."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        return await reader.read(MAX_LINE_BYTES)


def _warning(line: str) -> str | None:
    if match := _NATS_ERROR.match(line):
        return match[1]
    entry = _entry(line)
    return _text(entry) if entry and entry.get("level") in _LEVELS else None


def _readable(line: str) -> str:
    entry = _entry(line)
    return _text(entry) if entry else line


def _text(entry: dict[str, Any]) -> str:
    trace = str(entry.get("exception", "")).strip().rpartition("\n")[2]
    return f"{entry.get('event', '')}{f': {trace}' if trace else ''}"


def _entry(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return cast(dict[str, Any], entry) if isinstance(entry, dict) else None
