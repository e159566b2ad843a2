"""Output of `banksman up`, as text with a status line or as JSON, and the log files of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, cast

from banksman.cli import output
from banksman.contracts.visible import visible

# https://ecma-international.org/publications-and-standards/standards/ecma-48/
_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
_CLEAR_LINE = "\r\x1b[2K"


class Screen:
    def __init__(self, *, json: bool = False) -> None:
        self._json = json
        capable = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._has_status = capable and not json
        self._has_colours = "FORCE_COLOR" in os.environ or (capable and "NO_COLOR" not in os.environ)
        self._status = ""

    def report(self, event: str, process: str | None = None, **facts: Any) -> None:
        """Print an event: `ready`, `not_ready`, `ended`, `stopped`, `warning`, `note` or `up`."""
        # The terminal may be closed already; the shutdown must continue.
        with contextlib.suppress(OSError):
            if self._json:
                output.print_json({"event": event, **({"process": process} if process else {}), **facts})
            else:
                clear = _CLEAR_LINE if self._status else ""
                output.print_styled(f"{clear}{self._line(event, process or '', facts)}")
                self._show(self._status)

    def waiting(self, names: Sequence[str]) -> None:
        """Show the processes that are not ready in the status line; without names, remove it."""
        if self._has_status:
            with contextlib.suppress(OSError):
                self._show(f"waiting for {', '.join(names)}" if names else "")

    def _show(self, status: str) -> None:
        if status or self._status:
            sys.stdout.write(f"{_CLEAR_LINE}{status}")
            sys.stdout.flush()
        self._status = status

    def _line(self, event: str, process: str, facts: Mapping[str, Any]) -> str:
        name = f"{process:<13}"
        match event:
            case "ready":
                again = "again " if facts["again"] else ""
                return f"  {self._paint('✓', 'green')} {name} ready {again}after {facts['after_s']:.1f} s"
            case "not_ready":
                return f"  {self._paint('✗', 'red')} {name} not ready: {visible(facts['reason'])}"
            case "ended":
                how = f"{visible(facts['how'])}; restarts in {facts['again_in_s']:g} s"
                return f"  {self._paint('✗', 'red')} {name} {how}"
            case "stopped":
                return f"    {name} stopped"
            case "warning":
                return f"  {self._paint('!', 'yellow')} {name} {visible(facts['text'])}"
            case "up":
                notices = "".join(f"  {notice}\n" for notice in facts["notices"])
                url = self._paint(facts["url"], "bold")
                return f"{notices}\n  Banksman is ready at {url}  (Ctrl-C stops it)\n"
            case _:
                return f"  {visible(facts['text'])}"

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._has_colours else text


MAX_FILE_BYTES = 5 * 1024 * 1024
KEPT_FILES = 2
MAX_LINE_BYTES = 64 * 1024
_PAUSE_S = 0.02
"""Seconds between two reads of a pipe: a busy process writes hundreds of lines per second, and waking up
for each of them costs more than writing it."""
_PIPE_BYTES = 256 * 1024
"""Capacity of a pipe: it must hold the output of one pause, because writing to a full pipe blocks."""
_LAST_LINES = 20
_SHOWN_CHARS = 300

# Only errors of nats-server are shown. It warns about every stream whose state it rebuilds after a crash.
_NATS_ERROR = re.compile(r"^\[\d+\] \S+ \S+ \[(?:ERR|FTL)\] (.*)")
_LEVELS = frozenset({"warning", "error", "critical"})
_MAY_BE_WARNING = re.compile(rb'"(?:warning|error|critical)"|\[(?:ERR|FTL)\]')
"""Every line with a warning matches; so do a few others."""


class ChildLog:
    def __init__(self, file: Path, on_warning: Callable[[str], None]) -> None:
        # Each byte is one character of Latin-1: lines are stored as they are, and sizes are in bytes.
        # It is opened for the first line, where a full disk does no harm.
        self._file = _LogFile(
            file, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="latin-1", delay=True
        )
        self._on_warning = on_warning
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    @property
    def last_line(self) -> str:
        """The message of the last line that is not blank, at most 300 characters; empty if there is none."""
        lines = (_message(line)[1] for line in reversed(self._last))
        return next((line for line in lines if line.strip()), "")[:_SHOWN_CHARS]

    async def pump(self, descriptor: int) -> None:
        """Write the lines of a pipe until its last writer closes it; then close the pipe."""
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # With this limit the event loop reads no more from the pipe until the buffered data is consumed.
        reader = asyncio.StreamReader(limit=1)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        rest = b""
        with contextlib.closing(pipe):
            while piece := await reader.read(_PIPE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) >= MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                self._write(lines)
                await asyncio.sleep(_PAUSE_S)
        self._write([rest] if rest else [])

    def close(self) -> None:
        self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._file.emit(logging.makeLogRecord({"msg": b"\n".join(lines).decode("latin-1")}))
        self._last.extend(lines)
        for line in filter(_MAY_BE_WARNING.search, lines):
            level, message = _message(line)
            if level in _LEVELS:
                self._on_warning(message[:_SHOWN_CHARS])


class _LogFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the lines: a full disk must not end the supervised process."""


def _message(line: bytes) -> tuple[str, str]:
    """Return the level and the message of a line; the level is empty if the line has another format."""
    text = line.decode(errors="replace").rstrip()
    if match := _NATS_ERROR.match(text):
        return "error", match[1]
    try:
        entry = json.loads(text) if text.startswith("{") else None
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        return "", text
    fields = cast(dict[str, Any], entry)
    trace = str(fields.get("exception", "")).strip().rpartition("\n")[2]
    return str(fields.get("level", "")), f"{fields.get('event', '')}{f': {trace}' if trace else ''}"
