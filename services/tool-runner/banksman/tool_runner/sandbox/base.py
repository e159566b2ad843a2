from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from banksman.tool_runner.sandbox.output import CapturedOutput, Stream

OnOutput = Callable[[Stream, bytes], None]
"""Called in the event loop with each chunk as it is read; must neither block nor raise."""

OnListener = Callable[[socket.socket], None]
"""Called in the event loop with a socket that listens on a loopback of the sandbox's own; takes it over."""

KilledReason = Literal["timeout", "cancelled", "output_limit", "memory_limit", "workspace_limit"]
"""
timeout          it ran longer than its time-out
cancelled        somebody asked for its end
output_limit     it wrote more than `max_output_bytes`
memory_limit     its processes together used more than `memory_bytes`
workspace_limit  it grew its workspace beyond the quota
"""


class SandboxUnavailable(Exception):
    """The sandbox could not be set up, or was lost with its command. The message is the backend's or ours."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        """What to install or to set; None when the message is all that is known."""


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """One command for a sandbox."""

    script: str
    """Text for `bash -c`, without NUL."""
    workspace: Path
    """The directory that becomes `/workspace` and the current directory."""
    timeout_s: float
    on_listener: OnListener | None = None
    """Gets the listening socket of the proxy that the command is told of, from a backend that can make one.
    None, as by default: no network."""


@dataclass(frozen=True, slots=True)
class SandboxOutcome:
    """How a command ended. Whatever the reason, no process of it is left."""

    exit_code: int | None
    """As bash reports it, 128 + n for signal n; None when it was killed from outside."""
    output: CapturedOutput
    """Also when it was killed: what it had written until then. Whoever gets the outcome closes it."""
    killed_reason: KilledReason | None
    duration_ms: int


class Stop:
    """Ends one command from outside; the first reason wins."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._reason: KilledReason | None = None

    @property
    def reason(self) -> KilledReason | None:
        """Why the end was requested; None while nobody did."""
        return self._reason

    def request(self, reason: KilledReason) -> None:
        """Ask for the end; without effect on a command that has ended."""
        if not self._over.is_set():
            self._reason = reason
            self._over.set()

    def exited(self) -> None:
        """The sandbox's word that the command ended by itself."""
        self._over.set()

    async def wait(self) -> None:
        """Return once the command ended or its end was requested."""
        await self._over.wait()


class Sandbox(Protocol):
    """Runs commands, each isolated from the runner, from other workspaces and from the network."""

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        """Run one command to its end; `stop` ends it early, and so does cancelling the caller.

        Commands of one workspace come one after another.

        Raises:
            SandboxUnavailable: when the command could not be started.
        """
        ...


class SandboxBackend(Sandbox, Protocol):
    """A sandbox together with what looks after it."""

    async def sweep(self) -> None:
        """Tidy up from time to time, for ever."""
        ...

    def close(self) -> None:
        """End everything that it has started; no command may run any more."""
        ...
