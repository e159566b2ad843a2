from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from banksman.tool_runner.concurrency import beside
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox import processes
from banksman.tool_runner.sandbox.base import (
    OnOutput,
    SandboxCommand,
    SandboxOutcome,
    SandboxUnavailable,
    Stop,
)
from banksman.tool_runner.sandbox.call import BwrapCall
from banksman.tool_runner.sandbox.output import CapturedOutput
from banksman.tool_runner.sandbox.recipe import bwrap_options, inner_command

log = logging.getLogger(__name__)

_OOM_SCORE_ADJ = "1000"
_SWEEP_INTERVAL_S = 1.0


class BwrapSandbox:
    """One bwrap per command, spawned in the thread of the event loop.

    The parent-death signal that ends a sandbox with its runner is bound to the spawning thread: a worker
    thread that ends would take its sandboxes with it.
    """

    def __init__(
        self,
        identity: SandboxIdentity,
        limits: SandboxLimits,
        *,
        max_output_chars: int = 10_000,
        bwrap: str = "bwrap",
    ) -> None:
        """Build the filter and become a subreaper.

        Raises:
            SandboxUnavailable: naming the package that is missing.
        """
        self._identity = identity
        self._limits = limits
        self._max_output_chars = max_output_chars
        self._bwrap = find_bwrap(bwrap)
        self._slots = asyncio.Semaphore(limits.max_concurrent_calls)
        self._seccomp_fd = _memfd(_seccomp_filter())
        processes.become_subreaper()

    def close(self) -> None:
        """Give the filter back; no command may run any more."""
        os.close(self._seccomp_fd)

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        """Run one command to its end; see `Sandbox.run`."""
        stop = stop or Stop()
        async with self._slots:
            output = CapturedOutput(self._max_output_chars, self._limits.max_stored_output_bytes)
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(output.close)
                outcome = await self._run(command, output, on_output, stop)
                on_failure.pop_all()
            return outcome

    async def _run(
        self, command: SandboxCommand, output: CapturedOutput, on_output: OnOutput | None, stop: Stop
    ) -> SandboxOutcome:
        if stop.reason is not None:
            return SandboxOutcome(None, output, stop.reason, 0)
        started = time.monotonic()
        call = self._spawn(command, output, on_output, stop)
        try:
            await self._watch(call, command.timeout_s, stop)
        finally:
            await call.end(self._limits.kill_wait_s)
        duration_ms = round((time.monotonic() - started) * 1000)
        return SandboxOutcome(call.exit_code(), output, stop.reason, duration_ms)

    async def sweep(self) -> None:
        """Bury orphans every second, for ever: the net below the sweep that ends each call."""
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            if buried := await processes.bury_orphans():
                log.warning("%d sandbox processes outlived their call and were killed", buried)

    def _spawn(
        self, command: SandboxCommand, output: CapturedOutput, on_output: OnOutput | None, stop: Stop
    ) -> BwrapCall:
        with contextlib.ExitStack() as inner, contextlib.ExitStack() as ours:
            options_read, options_write = _pipe(inner, inner)
            status_read, status_write = _pipe(ours, inner)
            out_read, out_write = _pipe(ours, inner)
            err_read, err_write = _pipe(ours, inner)
            self._identity.own(out_write)
            self._identity.own(err_write)
            seccomp_fd = _reopen(self._seccomp_fd, inner)
            process = self._popen(
                ["--args", str(options_read), "--", *inner_command(command, self._limits)],
                stdout=out_write,
                stderr=err_write,
                inherit=(options_read, status_write, seccomp_fd),
            )
            ours.callback(_abandon, process)
            # bwrap waits for its options, so everything that it will ever start inherits the score.
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(_OOM_SCORE_ADJ)
            options = bwrap_options(command, self._limits, seccomp_fd=seccomp_fd, status_fd=status_write)
            os.write(options_write, b"".join(os.fsencode(word) + b"\0" for word in options))
            call = BwrapCall(
                process,
                status_fd=status_read,
                streams={"stdout": out_read, "stderr": err_read},
                output=output,
                stop=stop,
                max_output_bytes=self._limits.max_output_bytes,
                on_output=on_output,
            )
            ours.pop_all()
            return call

    def _popen(
        self, arguments: Sequence[str], *, stdout: int, stderr: int, inherit: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        user = self._identity.uid if self._identity.switches else None
        group = self._identity.gid if self._identity.switches else None
        extra_groups: list[int] | None = [] if self._identity.switches else None
        try:
            return subprocess.Popen(  # noqa: S603 - a fixed program; what the model wrote is an argument of bash
                [self._bwrap, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=inherit,
                # --clearenv inside bwrap does not reach what its own processes were started with.
                env={},
                cwd="/",
                umask=0o022,
                # A Ctrl-C at the terminal is for the runner, which then ends its calls in order.
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=extra_groups,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnavailable(
                f"cannot start {self._bwrap} as user {self._identity.uid}: {error}"
            ) from error

    async def _watch(self, call: BwrapCall, timeout_s: float, stop: Stop) -> None:
        """Return when the command has ended or has to be ended."""
        async with beside(self._watch_memory(call.pid, stop)):
            try:
                async with asyncio.timeout(timeout_s):
                    await stop.wait()
            except TimeoutError:
                stop.request("timeout")

    async def _watch_memory(self, pid: int, stop: Stop) -> None:
        while True:
            await asyncio.sleep(self._limits.watchdog_interval_s)
            if await asyncio.to_thread(processes.memory_bytes, pid) > self._limits.memory_bytes:
                stop.request("memory_limit")


def find_bwrap(program: str = "bwrap") -> str:
    """The path of bubblewrap.

    Raises:
        SandboxUnavailable: when it is not installed.
    """
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(f"{program} not found: install the package bubblewrap (0.8.0 or newer)")
    return path


def _seccomp_filter() -> bytes:
    try:
        # Loads libseccomp when imported, so a machine without it can still say what is missing.
        from banksman.tool_runner.sandbox.seccomp import build_filter
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(f"libseccomp: install the package libseccomp2 ({error})") from error
    return build_filter()


def _memfd(content: bytes) -> int:
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


def _reopen(fd: int, owner: contextlib.ExitStack) -> int:
    """A descriptor with a file position of its own: bwrap reads the filter to its end."""
    reopened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    owner.callback(os.close, reopened)
    return reopened


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _abandon(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
