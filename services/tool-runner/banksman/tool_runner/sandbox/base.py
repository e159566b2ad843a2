"""What both backends share: a command, its output and outcome, its stop, and the tasks beside it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar, assert_never

from banksman.tool_runner.sandbox.bwrap.spawner_process import PROXY_PORT
from banksman.tool_runner.settings import SandboxLimits, Toolchain
from banksman.tool_runner.workspaces.files import HOME_DIRECTORY

Stream = Literal["stdout", "stderr"]

MAX_UTF8_BYTES = 4
HEAD_SHARE = 0.6
_SPOOL_IN_MEMORY_BYTES = 64 * 1024

WORKSPACE = "/workspace"
"""Path of the workspace for a command, and its current directory unless it names another."""
EMPTY = "/var/empty"
"""An empty, read-only directory."""
USER = "agent"
"""Name of the user that runs commands."""
HOME = f"{WORKSPACE}/{HOME_DIRECTORY}"
"""The home directory of commands, which lives as long as the workspace."""
HOME_APART = "/home"
"""The home directory of programs of tool servers, which must not read settings that a command has written."""
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LOCAL = f"{HOME}/.local"
ENVIRONMENT_APART = {
    "PATH": _SYSTEM_PATH,
    "HOME": HOME_APART,
    "USER": USER,
    "LOGNAME": USER,
    "SHELL": "/bin/bash",
    "TERM": "xterm",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own tmpfs
}
"""The variables of a program of a tool server: none names a directory of the workspace."""
ENVIRONMENT = ENVIRONMENT_APART | {
    # Programs that a command has installed come last, so that they replace none of the system.
    "PATH": f"{_SYSTEM_PATH}:{_LOCAL}/bin",
    "HOME": HOME,
    "NPM_CONFIG_PREFIX": _LOCAL,
    # Otherwise Debian's pip refuses to install even into the home directory: https://peps.python.org/pep-0668/
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}
"""The variables of every command."""
_PROXY = dict.fromkeys(
    # curl reads only the lower-case http_proxy: https://curl.se/docs/manpage.html#ENVIRONMENT
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
    f"http://127.0.0.1:{PROXY_PORT}",
)

OnOutput = Callable[[Stream, bytes], None]
"""Called in the event loop with each chunk of output; must neither block nor raise."""

OnListener = Callable[[socket.socket], None]
"""Called in the event loop with a socket that listens on the sandbox's loopback; the callee owns it."""

KilledReason = Literal[
    "timeout",
    "cancelled",
    "fenced",
    "output_limit",
    "memory_limit",
    "workspace_limit",
    "stopped",
    "user",
    "idle",
]
"""
timeout          the command ran longer than its time-out
cancelled        the call was cancelled
fenced           the runner lost its lease
output_limit     the command wrote more than `max_output_bytes`
memory_limit     the processes of the command together used more than `memory_bytes`
workspace_limit  the command grew its workspace beyond the quota
stopped          a call stopped the process
user             a user stopped the process
idle             the conversation had no call for `processes.idle_s`
"""


class SandboxUnavailable(Exception):
    """The sandbox could not be set up, or ended unexpectedly together with its command."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        """What to install or to set; None if unknown."""


NO_TOOLCHAIN = Toolchain()


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    script: str
    """Argument of `bash -c`, without NUL."""
    workspace: Path
    """The directory that is mounted as `/workspace`."""
    timeout_s: float
    on_listener: OnListener | None = None
    """Receives the listening socket of the command's proxy. None: no network."""
    directory: str = WORKSPACE
    """The current directory: `WORKSPACE`, or `EMPTY` with the backend bwrap."""
    toolchain: Toolchain = NO_TOOLCHAIN
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of this command alone."""
    lasts: bool = False
    """True for a process that runs beside the calls of its workspace. Its output is not stored."""
    stdin: int | None = None
    """Descriptor of standard input, which stays open until the outcome; None for an empty input."""

    def environment(self) -> dict[str, str]:
        """Return all variables of the command."""
        own = ENVIRONMENT if self.directory == WORKSPACE else ENVIRONMENT_APART
        path = ":".join((*self.toolchain.search, own["PATH"]))
        proxy = _PROXY if self.on_listener is not None else {}
        return {**own, "PATH": path, **self.toolchain.variables, **self.variables, **proxy}


@dataclass(frozen=True, slots=True)
class SandboxOutcome:
    """The outcome of a command. In every case, none of its processes is left."""

    exit_code: int | None
    """Exit code as bash reports it: 128 + n for signal n; None if the runner killed the command."""
    output: CapturedOutput
    """Output until the command ended or was killed. The receiver of the outcome closes it."""
    killed_reason: KilledReason | None
    duration_ms: int


class Stop:
    """Requests the end of one command; the first reason wins."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self.reason: KilledReason | None = None

    def request(self, reason: KilledReason) -> None:
        if not self._over.is_set():
            self.reason = reason
            self._over.set()

    def exited(self) -> None:
        """Record that the command ended by itself; called by the sandbox."""
        self._over.set()

    async def wait(self) -> None:
        await self._over.wait()


class Sandbox(Protocol):
    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        """Run one command to its end; `stop` or cancelling the caller ends it early.

        The caller runs at most one command per workspace at a time; see `CallTurns`. Raises
        `SandboxUnavailable` if the command could not be started.
        """
        ...

    def shared(self, on_listener: OnListener | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Hold a sandbox for one workspace during the block.

        Its commands run at the same time, within the limits of one command together, and reach each other
        over the loopback network. Each has its own processes and `/tmp`. The end of the block ends all.
        `on_listener` receives the listening socket of the proxy of all its commands; None: no network.
        """
        ...


class SandboxBackend(Sandbox, Protocol):
    """A sandbox whose `sweep` removes leftovers until cancelled, and whose `close` ends all processes."""

    async def sweep(self) -> None: ...

    def close(self) -> None: ...


T = TypeVar("T")


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run `work` in a task during the block; raise its error, not an exception group, at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel(task)
    if not task.cancelled() and (error := task.exception()):
        raise error


async def run_until(work: Coroutine[object, object, T], ended: Coroutine[object, object, None]) -> T | None:
    """Run both, and cancel the slower one. Return the result of `work`, or None if `ended` returns first."""
    task, end = asyncio.create_task(work), asyncio.create_task(ended)
    try:
        await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        await cancel(task, end)


async def cancel(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class HeadTail:
    def __init__(self, max_chars: int) -> None:
        self._head_bytes = int(max_chars * HEAD_SHARE) * MAX_UTF8_BYTES
        self._tail_bytes = max_chars * MAX_UTF8_BYTES - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        # To bound the memory, all bytes between head and tail are dropped on arrival.
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:][-self._tail_bytes :]
        del self._tail[: -self._tail_bytes]

    @property
    def dropped(self) -> bool:
        return self.total_bytes > len(self._head) + len(self._tail)

    def text(self) -> str:
        """Return the whole stream as text, if nothing was dropped."""
        return (self._head + self._tail).decode("utf-8", "replace")

    def clip(self, max_chars: int) -> str:
        """Return at most `max_chars` characters: the head, a line about the omission, and the tail."""
        marker = f"\n[... cut: {self.total_bytes} bytes in total ...]\n"
        room = max(0, max_chars - len(marker))
        head_chars = int(room * HEAD_SHARE)
        head, tail = self._edges()
        tail_chars = room - head_chars
        return (head[:head_chars] + marker + (tail[-tail_chars:] if tail_chars else ""))[:max_chars]

    def _edges(self) -> tuple[str, str]:
        """Return both ends without the characters that the cuts have split."""
        if not self.dropped:
            return self.text(), self.text()
        head, _ = codecs.utf_8_decode(self._head, "replace", False)
        split = re.match(rb"[\x80-\xbf]{0,3}", self._tail)
        return head, self._tail[split.end() if split else 0 :].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ShownOutput:
    stdout: str
    stderr: str
    truncated: bool
    """True if `stdout` or `stderr` is incomplete."""


class CapturedOutput:
    """Both streams of a command: their heads and tails in memory, and all bytes up to a limit on disk."""

    def __init__(self, max_chars: int, max_stored_bytes: int) -> None:
        self._max_chars = max_chars
        self._room = max_stored_bytes
        self._spool = tempfile.SpooledTemporaryFile[bytes](max_size=_SPOOL_IN_MEMORY_BYTES)
        self.stdout = HeadTail(max_chars)
        self.stderr = HeadTail(max_chars)

    @property
    def total_bytes(self) -> int:
        return self.stdout.total_bytes + self.stderr.total_bytes

    def add(self, stream: Stream, chunk: bytes) -> None:
        match stream:
            case "stdout":
                self.stdout.add(chunk)
            case "stderr":
                self.stderr.add(chunk)
            case _:
                assert_never(stream)
        stored = chunk[: self._room]
        self._room -= len(stored)
        self._spool.write(stored)

    def shown(self) -> ShownOutput:
        """Return both streams in `max_chars` characters; a short stream leaves room for the other."""
        out_chars, err_chars = self._size(self.stdout), self._size(self.stderr)
        if out_chars + err_chars <= self._max_chars:
            return ShownOutput(self.stdout.text(), self.stderr.text(), truncated=False)
        err_share = min(err_chars, max(self._max_chars // 2, self._max_chars - out_chars))
        out_share = min(out_chars, self._max_chars - err_share)
        return ShownOutput(_show(self.stdout, out_share), _show(self.stderr, err_share), truncated=True)

    def whole(self) -> bytes:
        """Return both streams in order of arrival, at most `max_stored_bytes` bytes."""
        self._spool.seek(0)
        return self._spool.read()

    def close(self) -> None:
        self._spool.close()

    def _size(self, stream: HeadTail) -> int:
        return self._max_chars + 1 if stream.dropped else len(stream.text())


def _show(stream: HeadTail, share: int) -> str:
    fits = not stream.dropped and len(stream.text()) <= share
    return stream.text() if fits else stream.clip(share)


@dataclass(frozen=True, slots=True)
class RunningOutput:
    """What a running command has written, and its stop, which the output limit requests."""

    captured: CapturedOutput
    stop: Stop
    on_output: OnOutput | None
    max_bytes: int

    @property
    def full(self) -> bool:
        return self.captured.total_bytes > self.max_bytes

    def add(self, stream: Stream, chunk: bytes) -> None:
        self.captured.add(stream, chunk)
        if self.on_output is not None:
            self.on_output(stream, chunk)
        if self.full:
            self.stop.request("output_limit")


@contextlib.contextmanager
def capturing(
    max_chars: int,
    limits: SandboxLimits,
    on_output: OnOutput | None,
    stop: Stop | None,
    *,
    lasts: bool = False,
) -> Generator[RunningOutput]:
    """Capture the output of a command whose outcome the block returns; of one that lasts, only the ends."""
    captured = CapturedOutput(max_chars, 0 if lasts else limits.max_stored_output_bytes)
    try:
        yield RunningOutput(captured, stop or Stop(), on_output, limits.max_output_bytes)
    except BaseException:
        # Without an outcome, the caller cannot close the output.
        captured.close()
        raise
