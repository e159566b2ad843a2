"""One supervised process: start, readiness, log file, restart with back-off, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from banksman.cli.local.child import launched
from banksman.cli.local.forks import ForkedProcess, ForkRequest, ServiceTemplate, TemplateEnded
from banksman.cli.local.screen import ChildLog, Screen
from banksman.cli.output import PROGRAM
from banksman.cli.state import NO_RESPONSE, DataDir, ProcessIdentity, until_ready
from banksman.contracts.errors import ErrorCode
from banksman.runtime.backoff import Backoff
from banksman.runtime.disk import DiskLimits
from banksman.runtime.waits import set_within

FIRST_BACKOFF_S = 0.2
STEADY_S = 30.0
"""A process that ran for this many seconds restarts with the first back-off again."""
INVALID_SETTING = 2
"""Exit code of a process that refuses an invalid setting: a restart would fail in the same way."""
_LAST_OUTPUT_S = 1.0


class CannotStart(Exception):
    def __init__(self, message: str, code: str = ErrorCode.BAD_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class RestartPauses:
    """The pauses before restarts of one process: they double until a run lasts longer than `STEADY_S`."""

    def __init__(self, longest_s: float) -> None:
        self._backoff = Backoff(FIRST_BACKOFF_S, longest_s, spread=0)

    def after(self, ran_s: float) -> float:
        if ran_s > STEADY_S:
            self._backoff.reset()
        return self._backoff.next_s()


class ManagedProcess:
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
        """Run the process until `stop`; raise `CannotStart` if it ends because of an invalid setting."""
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
            # Buffered lines cannot be written to a full disk.
            with contextlib.suppress(OSError):
                self._log.close()

    async def stop(self, timeout_s: float) -> None:
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

    def restart(self) -> None:
        """End the process; `keep_alive` starts it again."""
        if self.identity is not None:
            self.identity.send(signal.SIGTERM)

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
        await set_within(self._stopping, pause_s)


class Stage(IntEnum):
    """Order in which processes stop: those that accept work before those that do it.

    Agents stop after tool-runners, because they store the results of the calls that end meanwhile.
    """

    GATEWAY = 1
    WORKFLOWS = 2
    TOOL_RUNNER = 3
    AGENT = 4
    MODEL_SERVER = 5
    NATS = 6


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    stage: Stage
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready_url: str
    service: str = ""
    needed: bool = True
    """False if the system is useful without it."""
    longest_pause_s: float = 10.0
    """Longest pause in seconds before a restart; the pauses of a process that ends repeatedly double."""


@dataclass(frozen=True, slots=True)
class System:
    data: DataDir
    url: str
    nats_url: str
    monitoring_url: str
    server: ProcessSpec
    services: tuple[ProcessSpec, ...]
    imported: tuple[str, ...]
    common_environment: Mapping[str, str]
    """The variables of every process: no setting of a service, and no secret."""
    ready_timeout_s: float
    drain_timeout_s: float
    disk: DiskLimits
    notices: tuple[str, ...]
    as_json: bool
