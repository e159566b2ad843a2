from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator

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
from banksman.tool_runner.sandbox.cgroups import CallCgroup, CallCgroups
from banksman.tool_runner.sandbox.listener import ListenerInbox
from banksman.tool_runner.sandbox.output import CapturedOutput
from banksman.tool_runner.sandbox.recipe import bwrap_options, inner_command
from banksman.tool_runner.sandbox.seccomp_program import seccomp_program
from banksman.tool_runner.sandbox.spawner import Spawner
from banksman.tool_runner.sandbox.spawner_process import SECCOMP_FD, STATUS_FD, become_subreaper

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 1.0


class BwrapSandbox:
    """One bwrap per command, as a child of a spawner process that ends it even if the runner is killed."""

    def __init__(
        self,
        identity: SandboxIdentity,
        limits: SandboxLimits,
        *,
        max_output_chars: int = 10_000,
        bwrap: str = "bwrap",
        cgroups: CallCgroups | None = None,
    ) -> None:
        """Build the seccomp filter and become a subreaper. With `cgroups`, each command gets its own cgroup.

        Raises:
            SandboxUnavailable: a package is missing; the message names it.
        """
        self._identity = identity
        self._limits = limits
        self._max_output_chars = max_output_chars
        self._cgroups = cgroups
        self._slots = asyncio.Semaphore(limits.max_concurrent_calls)
        self._spawner = Spawner(identity, find_bwrap(bwrap), seccomp_program())
        become_subreaper()

    def close(self) -> None:
        """End the spawner. No command may run afterwards."""
        self._spawner.close()

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
        # The call may have been cancelled while it waited for a slot.
        if stop.reason is not None:
            return SandboxOutcome(None, output, stop.reason, 0)
        started = time.monotonic()
        async with self._cgroup() as cgroup:
            call = self._spawn(command, output, on_output, stop, cgroup)
            try:
                await self._watch(call, command.timeout_s, stop)
            finally:
                await call.end(self._limits.kill_wait_s)
        duration_ms = round((time.monotonic() - started) * 1000)
        return SandboxOutcome(call.exit_code(), output, stop.reason, duration_ms)

    async def sweep(self) -> None:
        """Kill orphans of a killed spawner every second, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            if killed := await processes.kill_orphans():
                log.warning("%d sandbox processes outlived their spawner and were killed", killed)

    @contextlib.asynccontextmanager
    async def _cgroup(self) -> AsyncGenerator[CallCgroup | None]:
        """Create the cgroup of one call; end it with the block."""
        if self._cgroups is None:
            yield None
            return
        try:
            cgroup = self._cgroups.create(self._limits)
        except OSError as error:
            raise SandboxUnavailable(f"cannot create a cgroup: {error}") from error
        try:
            yield cgroup
        finally:
            # Without the shield, a cancelled caller would leave the cgroup behind.
            await asyncio.shield(asyncio.to_thread(cgroup.end))

    def _spawn(
        self,
        command: SandboxCommand,
        output: CapturedOutput,
        on_output: OnOutput | None,
        stop: Stop,
        cgroup: CallCgroup | None,
    ) -> BwrapCall:
        with contextlib.ExitStack() as inner, contextlib.ExitStack() as ours:
            status_read, status_write = _pipe(ours, inner)
            out_read, out_write = _pipe(ours, inner)
            err_read, err_write = _pipe(ours, inner)
            # /dev/stdout reopens the pipe by its path, which only its owner may do.
            self._identity.own(out_write)
            self._identity.own(err_write)
            proxy_inbox = None if command.on_listener is None else ListenerInbox(command.on_listener)
            special: dict[str, int] = {}
            if proxy_inbox is not None:
                inner.callback(proxy_inbox.given.close)
                ours.callback(proxy_inbox.close)
                special["proxy"] = proxy_inbox.given.fileno()
            if cgroup is not None:
                special["cgroup"] = cgroup.open()
                inner.callback(os.close, special["cgroup"])
            tree = self._spawner.spawn(
                bwrap_options(command, self._limits, seccomp_fd=SECCOMP_FD, status_fd=STATUS_FD),
                inner_command(command, self._limits),
                stdout=out_write,
                stderr=err_write,
                status=status_write,
                on_end=stop.exited,
                special=special,
            )
            # BwrapCall owns these from here; the write ends are closed in this process, so that the pipes end
            # with the sandbox.
            ours.pop_all()
        return BwrapCall(
            tree,
            self._spawner,
            status_fd=status_read,
            streams={"stdout": out_read, "stderr": err_read},
            output=output,
            stop=stop,
            max_output_bytes=self._limits.max_output_bytes,
            on_output=on_output,
            proxy_inbox=proxy_inbox,
        )

    async def _watch(self, call: BwrapCall, timeout_s: float, stop: Stop) -> None:
        """Return when the command has ended or must be ended."""
        async with beside(self._watch_memory(call, stop)):
            try:
                async with asyncio.timeout(timeout_s):
                    await stop.wait()
            except TimeoutError:
                stop.request("timeout")

    async def _watch_memory(self, call: BwrapCall, stop: Stop) -> None:
        while True:
            await asyncio.sleep(self._limits.watchdog_interval_s)
            if call.pid is None:
                continue
            # rlimits apply per process. Without a cgroup, only this limits all processes together.
            if await asyncio.to_thread(processes.memory_bytes, call.pid) > self._limits.memory_bytes:
                stop.request("memory_limit")
            if await asyncio.to_thread(processes.unlinked_bytes, call.pid) > self._limits.max_unlinked_bytes:
                stop.request("workspace_limit")


def find_bwrap(program: str = "bwrap") -> str:
    """Return the path of bubblewrap.

    Raises:
        SandboxUnavailable: bubblewrap is not installed.
    """
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(
            f"{program} not found: install the package bubblewrap (0.8.0 or newer)",
            remedy="apt-get install bubblewrap libseccomp2",
        )
    return path


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write
