"""One supervised process: start, readiness, log file, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, cast

from banksman.cli.local.child import launched
from banksman.cli.local.forks import ForkedProcess, ForkRequest, ServiceTemplate, TemplateEnded
from banksman.cli.local.screen import Screen
from banksman.cli.local.system import ProcessSpec
from banksman.cli.output import PROGRAM
from banksman.cli.processes import NO_RESPONSE, ProcessIdentity, until_ready
from banksman.contracts.errors import ErrorCode
from banksman.runtime.backoff import Backoff

FIRST_BACKOFF_S = 0.2
STEADY_S = 30.0
"""A process that ran for this many seconds restarts with the first back-off again."""
INVALID_SETTING = 2
"""Exit code of a process that refuses an invalid setting: a restart would fail in the same way."""
_LAST_OUTPUT_S = 1.0


class CannotStart(Exception):
    """The system cannot start. The message comes from the process that failed."""

    def __init__(self, message: str, code: str = ErrorCode.BAD_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class RestartPauses:
    """The pauses before restarts of one process: they double until a run lasts longer than `STEADY_S`."""

    def __init__(self, longest_s: float) -> None:
        self._backoff = Backoff(FIRST_BACKOFF_S, longest_s, spread=0)

    def after(self, ran_s: float) -> float:
        """Return the seconds to wait before the restart of a process that ran for `ran_s` seconds."""
        if ran_s > STEADY_S:
            self._backoff.reset()
        return self._backoff.next_s()


class ManagedProcess:
    """One process across its restarts."""

    def __init__(
        self,
        spec: ProcessSpec,
        log: ChildLog,
        screen: Screen,
        template: ServiceTemplate,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """Describe a process; `on_change` is called when it starts, becomes ready or ends."""
        self.spec = spec
        self._template = template
        self.ready = asyncio.Event()
        """Set when the process reports readiness; cleared when it ends."""
        self.identity: ProcessIdentity | None = None
        """The running process; None between two starts."""
        self._log = log
        self._screen = screen
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._problem = NO_RESPONSE

    @property
    def problem(self) -> str:
        """Why the process is not ready: its reason in `/readyz`, or without a response its last log line."""
        return self._log.last_line or self._problem if self._problem == NO_RESPONSE else self._problem

    async def keep_alive(self) -> None:
        """Start the process, and restart it whenever it ends, until `stop`.

        Raises:
            CannotStart: the process ended because of an invalid setting.
        """
        pauses = RestartPauses(self.spec.longest_pause_s)
        again = False
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                code = await self._run_once(again=again)
                if self._stopping.is_set():
                    return
                if code == INVALID_SETTING:
                    line = self._log.last_line.removeprefix(f"{PROGRAM}: ")
                    raise CannotStart(line or f"{self.spec.name}: a setting is invalid")
                await self._pause(code, pauses.after(time.monotonic() - began))
                again = True
        finally:
            self.kill()
            self._ended.set()
            self._log.close()

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM; kill the process if it has not ended after `timeout_s` seconds."""
        self._stopping.set()
        if self.identity is not None:
            self.identity.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            text = f"did not stop within {timeout_s:.0f} s and is killed"
            self._screen.report("warning", self.spec.name, text=text)
            self.kill()
            await self._ended.wait()
        self._screen.report("stopped", self.spec.name)

    def kill(self) -> None:
        self._stopping.set()
        if self.identity is not None:
            self.identity.kill_group()

    async def _run_once(self, *, again: bool) -> int:
        # With a pipe of asyncio, `wait` would not return before every descendant has closed it.
        output, written = os.pipe()
        pump = asyncio.create_task(self._log.pump(output), name=f"log {self.spec.name}")
        try:
            try:
                with os.fdopen(written, "wb", buffering=0) as out:
                    process = await self._spawn(out.fileno())
            except TemplateEnded:
                # The next attempt starts another template.
                return -signal.SIGKILL
            self.identity = ProcessIdentity.of(process.pid)
            self._on_change()
            # A stop during the start found no process to signal.
            if self._stopping.is_set():
                self.identity.send(signal.SIGTERM)
            watch = asyncio.create_task(self._watch(again=again), name=f"readiness {self.spec.name}")
            try:
                return await process.wait()
            finally:
                watch.cancel()
        finally:
            # A descendant may leave the pipe open.
            await asyncio.wait([pump], timeout=_LAST_OUTPUT_S)
            pump.cancel()
            self.identity = None
            self.ready.clear()
            self._on_change()

    async def _spawn(self, output: int) -> asyncio.subprocess.Process | ForkedProcess:
        spec = self.spec
        if spec.service and sys.platform == "linux":
            request = ForkRequest(spec.service, " ".join(spec.command), spec.environment)
            return await self._template.fork(request, output)
        return await asyncio.create_subprocess_exec(
            *launched(spec.command, os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(spec.environment),
            # Only the supervisor must receive a Ctrl-C of the terminal: it stops the processes in order.
            process_group=0,
        )

    async def _watch(self, *, again: bool) -> None:
        began = time.monotonic()
        await until_ready(self.spec.ready_url, self._note)
        self.ready.set()
        self._on_change()
        after_s = round(time.monotonic() - began, 3)
        self._screen.report("ready", self.spec.name, after_s=after_s, again=again)

    def _note(self, problem: str) -> None:
        self._problem = problem

    async def _pause(self, code: int, pause_s: float) -> None:
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            line = self._log.last_line
            how = f"ended with exit code {code}{f' ({line})' if line else ''}"
        self._screen.report("ended", self.spec.name, how=how, again_in_s=pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()


MAX_FILE_BYTES = 5 * 1024 * 1024
"""A log file is rotated before it would exceed this size."""
KEPT_FILES = 2
"""Maximum number of rotated files."""
MAX_LINE_BYTES = 64 * 1024
"""Longer lines are split."""
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
    """The log of one process across its restarts."""

    def __init__(self, file: Path, on_warning: Callable[[str], None]) -> None:
        # Each byte is one character of Latin-1: lines are stored as they are, and sizes are in bytes.
        self._file = _LogFile(file, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="latin-1")
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
