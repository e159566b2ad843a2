"""Sessions: shells and Python interpreters that keep their variables and directory between calls."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from banksman.runtime.waits import any_set
from banksman.tool_runner.processes import python_session
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.processes.processes import Key, LastingProcesses, ProcessRefused
from banksman.tool_runner.sandbox.base import (
    NO_TOOLCHAIN,
    KilledReason,
    OnOutput,
    RunningOutput,
    SandboxOutcome,
    Stream,
    capturing,
)
from banksman.tool_runner.settings import Toolchain
from banksman.tool_runner.tools.toolbox import ToolRun

Language = Literal["bash", "python"]
_PIPE_BYTES = 256 * 1024
"""Size of the pipe to a session, which holds a whole script: the runner never waits for a session to read."""
_BASH = r"""
exec {__in}<&0 {__out}>&1 {__err}>&2 </dev/null
while IFS= read -r -d '' -u "$__in" __mark && IFS= read -r -d '' -u "$__in" __script; do
    eval "$__script"
    builtin printf -v __end '%s %d' "$__mark" "$?"
    builtin printf '\0%s\0' "$__end" >&"$__out"
    builtin printf '\0%s\0' "$__end" >&"$__err"
done
"""
_SCRIPTS: dict[Language, str] = {
    "bash": _BASH,
    "python": f"exec python3 -u -c {shlex.quote(Path(python_session.__file__).read_text())}",
}


class _Marked:
    """One stream of a call: its output, and the exit code at its end."""

    def __init__(self, mark: bytes) -> None:
        self._end = re.compile(rb"\x00%b (\d+)\x00" % mark)
        self._longest = len(mark) + 8
        self._held = b""
        self.exit_code: int | None = None

    def output_in(self, chunk: bytes) -> bytes:
        """Return the output in a chunk. The end of it is held back while it may be part of the mark."""
        if self.exit_code is not None:
            return chunk
        received = self._held + chunk
        if (end := self._end.search(received)) is not None:
            self.exit_code, self._held = int(end[1]), b""
            return received[: end.start()] + received[end.end() :]
        first = received.find(b"\0", max(0, len(received) - self._longest))
        cut = len(received) if first < 0 else first
        self._held = received[cut:]
        return received[:cut]


@dataclass
class _Call:
    output: RunningOutput
    streams: dict[Stream, _Marked]
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def output_in(self, stream: Stream, chunk: bytes) -> bytes:
        text = self.streams[stream].output_in(chunk)
        if text:
            self.output.add(stream, text)
        if all(one.exit_code is not None for one in self.streams.values()):
            self.done.set()
        return text


@dataclass
class InterpreterSession:
    """Runs one script after another; the caller holds the turn of the workspace."""

    process: Process
    language: Language
    scripts: int
    """The write end of its standard input."""
    _call: _Call | None = None

    def receive(self, stream: Stream, chunk: bytes) -> None:
        text = chunk if self._call is None else self._call.output_in(stream, chunk)
        self.process.output.add(stream, text)

    async def run(self, script: str, output: RunningOutput, timeout_s: float) -> int | None:
        """Run a script; return its exit code, or None if the session ended before the script.

        `output.stop` and the time-out end the whole session.
        """
        mark = secrets.token_hex(16)
        call = self._call = _Call(output, {name: _Marked(mark.encode()) for name in _STREAMS})
        try:
            os.write(self.scripts, f"{mark}\0{script}\0".encode())
            await any_set(call.done, output.stop, self.process.ended, timeout_s=timeout_s)
        except (BlockingIOError, BrokenPipeError):
            pass
        finally:
            self._call = None
        self.process.shown_to = self.process.output.total_bytes
        return call.streams["stdout"].exit_code if call.done.is_set() else None


@dataclass(frozen=True, slots=True)
class SessionCall:
    name: str
    language: Language
    script: str
    toolchain: Toolchain = NO_TOOLCHAIN
    """Used when the session starts."""


_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


@dataclass
class Sessions:
    processes: LastingProcesses
    _open: dict[tuple[Key, str], InterpreterSession] = field(
        default_factory=dict[tuple[Key, str], InterpreterSession]
    )

    async def run(self, run: ToolRun, called: SessionCall, on_output: OnOutput | None) -> SandboxOutcome:
        """Run a script in its session, which is started if there is none of this name.

        Raises:
            ProcessRefused: the session cannot be started, or has another language.
        """
        started = time.monotonic()
        limits = self.processes.limits
        with capturing(limits.max_output_chars, limits.sandbox, on_output, run.stop) as output:
            session = await self._session(run, called)
            code = await session.run(called.script, output, run.timeout_s)
            killed = None if code is not None else await self._end(session, run)
            if code is None and killed is None:
                code = session.process.exit_code
            duration_ms = round((time.monotonic() - started) * 1000)
            return SandboxOutcome(code, output.captured, killed, duration_ms)

    def is_running(self, run: ToolRun, name: str) -> bool:
        session = self._open.get(((run.workspace.tenant, run.workspace.conversation), name))
        return session is not None and session.process.running

    async def _end(self, session: InterpreterSession, run: ToolRun) -> KilledReason | None:
        """End a session whose script did not end; return the reason, None if it ended by itself."""
        await self.processes.stop(session.process, run.stop.reason or "timeout")
        if (problem := session.process.problem) is not None:
            raise ProcessRefused(problem)
        session.process.told_in = run.call_id
        return session.process.killed

    async def _session(self, run: ToolRun, called: SessionCall) -> InterpreterSession:
        key, name = (run.workspace.tenant, run.workspace.conversation), called.name
        session = self._open.get((key, name))
        if session is not None and session.process.running:
            if session.language != called.language:
                raise ProcessRefused(f"the session {name!r} runs {session.language}; use another name")
            return session
        self._open = {known: one for known, one in self._open.items() if one.process.running}
        session = self._open[key, name] = await self._start(run, called)
        return session

    async def _start(self, run: ToolRun, called: SessionCall) -> InterpreterSession:
        name, language = called.name, called.language
        theirs, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(theirs, True)
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = Process(
            f"session {name} ({language})", _SCRIPTS[language], called.toolchain, name, (theirs, ours)
        )
        session = InterpreterSession(process, language, ours)
        process.on_output = session.receive
        run.workspace.identity.own(theirs)
        await self.processes.start(run, process, theirs)
        return session
