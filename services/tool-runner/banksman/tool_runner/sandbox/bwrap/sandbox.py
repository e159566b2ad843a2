from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time

from banksman.tool_runner.concurrency import in_background
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox.base import (
    OnOutput,
    SandboxCommand,
    SandboxOutcome,
    SandboxUnavailable,
    Stop,
)
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.call import BwrapCall, ListenerInbox
from banksman.tool_runner.sandbox.bwrap.cgroups import CallCgroup, CallCgroups
from banksman.tool_runner.sandbox.bwrap.recipe import bwrap_options, inner_command
from banksman.tool_runner.sandbox.bwrap.spawner import Spawner, Starter
from banksman.tool_runner.sandbox.bwrap.spawner_process import SECCOMP_FD, STATUS_FD, become_subreaper
from banksman.tool_runner.sandbox.bwrap.starters import Starters
from banksman.tool_runner.sandbox.bwrap.watchdog import HiddenFilesWatch, memory_bytes
from banksman.tool_runner.sandbox.output import CapturedOutput
from banksman.tool_runner.sandbox.seccomp import command_filter

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 1.0
_WATCH_SHARE = 0.5
"""Maximum share of the time that is spent on measuring one call."""


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
        # Twice as many may run at a time: see `Shares`.
        calls = 2 * limits.max_concurrent_calls
        spawner = Spawner(identity, find_bwrap(bwrap), command_filter(), calls)
        self._starters = Starters(spawner, limits, cgroups)
        become_subreaper()

    def close(self) -> None:
        self._starters.close()

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        stop = stop or Stop()
        output = CapturedOutput(self._max_output_chars, self._limits.max_stored_output_bytes)
        # The call may have been cancelled while its proxy was set up. Then no process is started.
        if stop.reason is not None:
            return SandboxOutcome(None, output, stop.reason, 0)
        started = time.monotonic()
        try:
            async with self._starters.lend() as place:
                cgroup = place.cgroup
                call = self._spawn(command, output, on_output, stop, place.starter)
                try:
                    await self._watch(call, command.timeout_s, stop, cgroup)
                finally:
                    await call.end(self._limits.kill_wait_s)
                killed = stop.reason
                # The kernel may have killed the command between two measurements of the watchdog.
                if killed is None and cgroup is not None and cgroup.exceeded_memory():
                    killed = "memory_limit"
            exit_code = call.exit_code() if killed is None else None
        except BaseException:
            # Without an outcome, the caller cannot close the output.
            output.close()
            raise
        return SandboxOutcome(exit_code, output, killed, round((time.monotonic() - started) * 1000))

    async def sweep(self) -> None:
        """Kill orphans of a killed spawner, and end unused starters, every second until cancelled."""
        # Reading the table of processes took a third of the CPU time of an idle runner. Without starters, the
        # table is therefore read only until it contains no orphan.
        clean = False
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            started = self._starters.has_starters
            if clean and not started:
                continue
            await self._starters.end_unused()
            killed = await processes.kill_orphans()
            clean = not started and not killed
            if killed:
                log.warning("%d sandbox processes outlived their spawner and were killed", killed)

    def _spawn(
        self,
        command: SandboxCommand,
        output: CapturedOutput,
        on_output: OnOutput | None,
        stop: Stop,
        starter: Starter,
    ) -> BwrapCall:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as on_failure:
            inbox: ListenerInbox | None = None
            special: dict[str, int] = {}
            if command.on_listener is not None:
                inbox = ListenerInbox(command.on_listener)
                given.callback(inbox.given.close)
                on_failure.callback(inbox.close)
                special["proxy"] = inbox.given.fileno()
            options = bwrap_options(command, self._limits, seccomp_fd=SECCOMP_FD, status_fd=STATUS_FD)
            tree = starter.spawn(options, inner_command(command), on_end=stop.exited, special=special)
            on_failure.pop_all()
        max_output_bytes = self._limits.max_output_bytes
        return BwrapCall(tree, starter, output, stop, max_output_bytes, on_output, inbox)

    async def _watch(self, call: BwrapCall, timeout_s: float, stop: Stop, cgroup: CallCgroup | None) -> None:
        async with in_background(self._watch_memory(call, stop, cgroup)):
            try:
                async with asyncio.timeout(timeout_s):
                    await stop.wait()
            except TimeoutError:
                stop.request("timeout")

    async def _watch_memory(self, call: BwrapCall, stop: Stop, cgroup: CallCgroup | None) -> None:
        pause_s = self._limits.watchdog_interval_s
        hidden = HiddenFilesWatch(self._limits.max_unlinked_bytes, self._limits.file_size_bytes)
        while True:
            await asyncio.sleep(pause_s)
            if call.pid is None:
                continue
            started = time.monotonic()
            if await asyncio.to_thread(self._exceeds_memory, call.pid, cgroup):
                stop.request("memory_limit")
            if await asyncio.to_thread(hidden.exceeded, call.pid):
                stop.request("workspace_limit")
            # The command controls the number of processes and mappings, and so the time of a measurement.
            pause_s = max(self._limits.watchdog_interval_s, (time.monotonic() - started) / _WATCH_SHARE)

    def _exceeds_memory(self, pid: int, cgroup: CallCgroup | None) -> bool:
        if cgroup is not None:
            return cgroup.exceeded_memory()
        # rlimits apply per process. Without a cgroup, only this limits all processes together.
        return memory_bytes(pid) > self._limits.memory_bytes


def find_bwrap(program: str = "bwrap") -> str:
    """Return the path of bubblewrap; raise SandboxUnavailable if it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(
            f"{program} not found: install the package bubblewrap (0.8.0 or newer)",
            remedy="apt-get install bubblewrap libseccomp2",
        )
    return path
