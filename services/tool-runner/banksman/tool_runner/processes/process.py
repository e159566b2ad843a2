"""One process: what is known of it, and the last part of its output."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

from banksman.contracts.processes import SHOWN_COMMAND_CHARS, KnownProcess, ProcessInfo
from banksman.tool_runner.sandbox.base import NO_TOOLCHAIN, KilledReason, OnOutput, Stop, Stream
from banksman.tool_runner.settings import Toolchain

MAX_KEPT_BYTES = 256 * 1024
"""Bytes of the output of a running process that are kept in memory: the last ones."""
MAX_KEPT_AFTER_END_BYTES = 64 * 1024
_KEPT = 2 * MAX_KEPT_BYTES
"""Above this, the oldest bytes are dropped: not with each chunk, as this copies the rest."""


class RecentOutput:
    """Both streams of a process in order of arrival, of which the last bytes are kept."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.total_bytes = 0
        self.arrived = asyncio.Event()
        """Set when output has arrived since it was last cleared."""

    def add(self, _stream: Stream, chunk: bytes) -> None:
        self._kept += chunk
        self.total_bytes += len(chunk)
        if len(self._kept) > _KEPT:
            del self._kept[:-MAX_KEPT_BYTES]
        self.arrived.set()

    def trim(self) -> None:
        del self._kept[:-MAX_KEPT_AFTER_END_BYTES]

    def read(self, offset: int) -> tuple[bytes, int]:
        """Return the output from an offset on, and its offset, which is higher if bytes were dropped."""
        first = self.total_bytes - len(self._kept)
        start = min(max(offset, first), self.total_bytes)
        return bytes(self._kept[start - first :]), start


@dataclass
class Process:
    command: str
    """What it is called for models and users."""
    script: str
    """What bash runs."""
    toolchain: Toolchain = NO_TOOLCHAIN
    session: str | None = None
    descriptors: tuple[int, ...] = ()
    """Closed at its end."""
    run_id: str | None = None
    """The run whose call started it; None before its start."""
    id: str = field(default_factory=lambda: f"p{secrets.token_hex(4)}")
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    output: RecentOutput = field(default_factory=RecentOutput)
    on_output: OnOutput | None = None
    """Receives its output instead of `output`."""
    stop: Stop = field(default_factory=Stop)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: datetime | None = None
    exit_code: int | None = None
    killed: KilledReason | None = None
    problem: str | None = None
    """Why it was not started; None if it was."""
    shown_to: int = 0
    """Bytes of its output that the model has received."""
    told_in: str | None = None
    """The call whose result notifies the model of its end."""

    def end(
        self, *, exit_code: int | None = None, killed: KilledReason | None = None, problem: str | None = None
    ) -> None:
        self.exit_code, self.killed, self.problem = exit_code, killed, problem
        self.ended_at = datetime.now(UTC)
        for fd in self.descriptors:
            os.close(fd)
        self.output.trim()
        self.ended.set()
        self.output.arrived.set()

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    @property
    def known(self) -> KnownProcess:
        return KnownProcess(id=self.id, command=self.command[:SHOWN_COMMAND_CHARS])

    def info(self, idle_s: float) -> ProcessInfo:
        return ProcessInfo(
            **dict(self.known),
            run_id=self.run_id,
            session=self.session,
            status="running" if self.running else "ended",
            exit_code=self.exit_code,
            reason=None if self.running else self.reason(idle_s),
            started_at=self.started_at,
            ended_at=self.ended_at,
            output_bytes=self.output.total_bytes,
        )

    def reason(self, idle_s: float) -> str | None:
        """Return why it was ended or not started; None if it ended by itself."""
        match self.killed:
            case None:
                return self.problem
            case "idle":
                return f"its sandbox was ended because the conversation had no call for {idle_s:g} s"
            case "stopped":
                return "it was stopped"
            case "user":
                return "a user stopped it"
            case "timeout":
                return "it was killed after its time-out"
            case "fenced":
                return "its tool-runner lost the connection to the platform"
            case "cancelled":
                return "its call was cancelled, or its tool-runner was stopped"
            case limit:
                return f"it reached a limit of its sandbox: {limit}"
