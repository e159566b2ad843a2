from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from banksman.tool_runner.sandbox.output import CapturedOutput, Stream

WORKSPACE = "/workspace"
"""Path of the workspace for a command, and its current directory."""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/home",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own tmpfs
}
"""All variables of a command, except those of its proxy."""

OnOutput = Callable[[Stream, bytes], None]
"""Called in the event loop with each chunk of output; must neither block nor raise."""

OnListener = Callable[[socket.socket], None]
"""Called in the event loop with a socket that listens on the sandbox's loopback; the callee owns it."""

KilledReason = Literal["timeout", "cancelled", "fenced", "output_limit", "memory_limit", "workspace_limit"]
"""
timeout          the command ran longer than its time-out
cancelled        the call was cancelled
fenced           the runner lost its lease
output_limit     the command wrote more than `max_output_bytes`
memory_limit     the processes of the command together used more than `memory_bytes`
workspace_limit  the command grew its workspace beyond the quota
"""


class SandboxUnavailable(Exception):
    """The sandbox could not be set up, or ended unexpectedly together with its command."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        """What to install or to set; None if unknown."""


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    script: str
    """Argument of `bash -c`, without NUL."""
    workspace: Path
    """The directory that is mounted as `/workspace`, the current directory of the command."""
    timeout_s: float
    on_listener: OnListener | None = None
    """Receives the listening socket of the command's proxy, if the backend supports one. None: no network."""


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
        self._reason: KilledReason | None = None

    @property
    def reason(self) -> KilledReason | None:
        """Why the end was requested; None if it was not."""
        return self._reason

    def request(self, reason: KilledReason) -> None:
        """Request the end; no effect on a command that has ended."""
        if not self._over.is_set():
            self._reason = reason
            self._over.set()

    def exited(self) -> None:
        """Record that the command ended by itself; called by the sandbox."""
        self._over.set()

    async def wait(self) -> None:
        await self._over.wait()


class Sandbox(Protocol):
    """Runs commands, each isolated from the runner, from other workspaces and from the network."""

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        """Run one command to its end; `stop` or cancelling the caller ends it early.

        The caller runs at most one command per workspace at a time; see `CallTurns`.

        Raises:
            SandboxUnavailable: the command could not be started.
        """
        ...


class SandboxBackend(Sandbox, Protocol):
    """A sandbox whose `sweep` removes leftovers until cancelled, and whose `close` ends all processes."""

    async def sweep(self) -> None: ...

    def close(self) -> None: ...
