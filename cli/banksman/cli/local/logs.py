"""The output of a child process: written to its log file, with warnings reported to the screen."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

MAX_FILE_BYTES = 5 * 1024 * 1024
"""A log file is rotated before it would exceed this size."""
KEPT_FILES = 2
"""Rotated files that are kept."""
MAX_LINE_BYTES = 64 * 1024
"""Longer lines are split."""
_PAUSE_S = 0.02
"""Seconds between two reads of a pipe: a busy process writes hundreds of lines per second, and waking up
for each of them costs more than writing it."""
_PIPE_BYTES = 256 * 1024
"""Room for what a process writes during a pause. A full pipe would hold it up."""
_LAST_LINES = 20
_SHOWN_CHARS = 300

# Only errors of nats-server are shown. It warns about every stream whose state it rebuilds after a crash.
_NATS_ERROR = re.compile(r"^\[\d+\] \S+ \S+ \[(?:ERR|FTL)\] (.*)")
_LEVELS = frozenset({"warning", "error", "critical"})
_MAY_BE_WARNING = re.compile(rb'"(?:warning|error|critical)"|\[(?:ERR|FTL)\]')
"""Every line with a warning matches; so do a few others."""


class ChildLog:
    """The log of one process across its restarts."""

    def __init__(self, file: Path, on_warning: Callable[[str], None]) -> None:
        self._file = _RotatedFile(file)
        self._on_warning = on_warning
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    @property
    def last_line(self) -> str:
        """The last line that is not blank, in readable form and shortened; empty if there is none."""
        lines = (_readable(line.decode(errors="replace").rstrip()) for line in reversed(self._last))
        return next((line for line in lines if line.strip()), "")[:_SHOWN_CHARS]

    async def pump(self, descriptor: int) -> None:
        """Write the lines of a pipe until its last writer closes it; then close the pipe."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(descriptor, False)
        rest = b""
        with os.fdopen(descriptor, "rb", buffering=0):
            while piece := await _read(descriptor):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) >= MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                self._write(lines)
                await asyncio.sleep(_PAUSE_S)
        self._write([rest] if rest else [])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._file.write(b"\n".join((*lines, b"")))
        self._last.extend(lines)
        for line in lines:
            if _MAY_BE_WARNING.search(line) and (warning := _warning(line.decode(errors="replace"))):
                self._on_warning(warning[:_SHOWN_CHARS])


class _RotatedFile:
    """A file that is renamed to `FILE.1` before it becomes too large, as that is to `FILE.2`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def write(self, text: bytes) -> None:
        """Append lines, at most `MAX_FILE_BYTES` at once."""
        if self._size + len(text) > MAX_FILE_BYTES:
            self._rotate()
        # A full disk must not end the process that this one supervises.
        with contextlib.suppress(OSError):
            self._size += self._file.write(text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, KEPT_FILES + 1))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._file = self._path.open("wb", buffering=0)
        self._size = 0


async def _read(pipe: int) -> bytes:
    """Return what a pipe has, once it has something; empty at its end."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError):
            return os.read(pipe, _PIPE_BYTES)
        readable = asyncio.Event()
        loop.add_reader(pipe, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(pipe)


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
