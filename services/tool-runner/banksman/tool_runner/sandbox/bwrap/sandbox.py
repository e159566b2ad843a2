from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import (
    KilledReason,
    OnListener,
    OnOutput,
    RunningOutput,
    Sandbox,
    SandboxCommand,
    SandboxOutcome,
    SandboxUnavailable,
    Stop,
    capturing,
    in_background,
)
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.call import BwrapCall
from banksman.tool_runner.sandbox.bwrap.cgroups import CallCgroup, CallCgroups
from banksman.tool_runner.sandbox.bwrap.processes import HiddenFilesWatch, memory_bytes
from banksman.tool_runner.sandbox.bwrap.recipe import INNER_ID, bwrap_options, inner_command
from banksman.tool_runner.sandbox.bwrap.spawner import Spawner, Starter
from banksman.tool_runner.sandbox.bwrap.spawner_process import SECCOMP_FD, STATUS_FD, become_subreaper
from banksman.tool_runner.sandbox.etc import write_etc
from banksman.tool_runner.sandbox.listener import ListenerInbox
from banksman.tool_runner.sandbox.seccomp import command_filter
from banksman.tool_runner.settings import SandboxLimits

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 1.0
_WATCH_SHARE = 0.5
"""Maximum share of the time that is spent on measuring one call."""
UNUSED_S = 30.0
"""Seconds after which an unused starter ends; a starter occupies about 2 MiB of memory."""
SHARED_TREES = 4
"""How many times `max_processes` all commands of a shared sandbox may have together, with a cgroup."""


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
        etc: Path | None = None,
    ) -> None:
        """With `cgroups`, each command gets its own cgroup. Makes this process a subreaper.

        `etc` is the directory in which this process writes the `/etc` of commands.
        """
        if etc is not None:
            write_etc(etc, INNER_ID, INNER_ID)
        self._etc = etc
        self._identity = identity
        self._limits = limits
        self._max_output_chars = max_output_chars
        # Twice as many may run at a time: see `Shares`.
        calls = 2 * limits.max_concurrent_calls + limits.max_sessions
        spawner = Spawner(identity, find_bwrap(bwrap), command_filter(), calls)
        self._starters = Starters(spawner, limits, cgroups)
        become_subreaper()

    def close(self) -> None:
        self._starters.close()

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        return await self.run_at(self._starters.lend(), command, on_output, stop)

    @contextlib.asynccontextmanager
    async def shared(self, on_listener: OnListener | None = None) -> AsyncGenerator[SharedSandbox]:
        async with self._starters.lend(shared=True) as place:
            sandbox = SharedSandbox(self, place, on_listener)
            async with in_background(self._watch_use(lambda: place.starter.process.pid, sandbox, place)):
                yield sandbox

    async def run_at(
        self,
        lent: AbstractAsyncContextManager[PooledStarter],
        command: SandboxCommand,
        on_output: OnOutput | None,
        stop: Stop | None,
    ) -> SandboxOutcome:
        """Run a command at a starter; see `Sandbox.run`."""
        with capturing(self._max_output_chars, self._limits, on_output, stop, lasts=command.lasts) as output:
            # The call may have been cancelled while its proxy was set up. Then no process is started.
            if output.stop.reason is not None:
                return SandboxOutcome(None, output.captured, output.stop.reason, 0)
            started = time.monotonic()
            async with lent as place:
                cgroup = place.cgroup
                call = self._spawn(command, output, place)
                try:
                    await self._watch(call, command.timeout_s, output.stop, place)
                finally:
                    await call.end(self._limits.kill_wait_s)
                killed = output.stop.reason
                # The kernel may have killed the command between two measurements of the watchdog.
                if killed is None and cgroup is not None and cgroup.exceeded_memory():
                    killed = "memory_limit"
            exit_code = call.exit_code() if killed is None else None
            duration_ms = round((time.monotonic() - started) * 1000)
            return SandboxOutcome(exit_code, output.captured, killed, duration_ms)

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

    def _spawn(self, command: SandboxCommand, output: RunningOutput, place: PooledStarter) -> BwrapCall:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as on_failure:
            inbox: ListenerInbox | None = None
            special: dict[str, int] = {}
            if command.on_listener is not None and not place.has_listener:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                given.callback(theirs.close)
                inbox = ListenerInbox(ours, command.on_listener)
                on_failure.callback(inbox.close)
                special["proxy"] = theirs.fileno()
                place.has_listener = place.shared
            if command.stdin is not None:
                special["stdin"] = command.stdin
            options = bwrap_options(
                command,
                self._limits,
                etc=self._etc,
                seccomp_fd=SECCOMP_FD,
                status_fd=STATUS_FD,
                shares_network=place.shared,
            )
            words = inner_command(command)
            tree = place.starter.spawn(options, words, on_end=output.stop.exited, special=special)
            on_failure.pop_all()
        return BwrapCall(tree, place.starter, output, inbox)

    async def _watch(self, call: BwrapCall, timeout_s: float, stop: Stop, place: PooledStarter) -> None:
        async with (
            # All commands of a shared sandbox are watched together.
            contextlib.nullcontext()
            if place.shared
            else in_background(self._watch_use(lambda: call.tree.pid, stop, place))
        ):
            try:
                async with asyncio.timeout(timeout_s):
                    await stop.wait()
            except TimeoutError:
                stop.request("timeout")

    async def _watch_use(
        self, root: Callable[[], int | None], stop: Stop | SharedSandbox, place: PooledStarter
    ) -> None:
        """Watch the memory and the hidden files of the processes below `root` until cancelled."""
        pause_s = self._limits.watchdog_interval_s
        hidden = HiddenFilesWatch(self._limits.max_unlinked_bytes, self._limits.file_size_bytes)
        while True:
            await asyncio.sleep(pause_s)
            if (pid := root()) is None:
                continue
            started = time.monotonic()
            if await asyncio.to_thread(self._exceeds_memory, pid, place.cgroup):
                stop.request("memory_limit")
            if await asyncio.to_thread(hidden.exceeded, pid):
                stop.request("workspace_limit")
            # The command controls the number of processes and mappings, and so the time of a measurement.
            pause_s = max(self._limits.watchdog_interval_s, (time.monotonic() - started) / _WATCH_SHARE)

    def _exceeds_memory(self, pid: int, cgroup: CallCgroup | None) -> bool:
        if cgroup is not None:
            return cgroup.exceeded_memory()
        # rlimits apply per process. Without a cgroup, only this limits all processes together.
        return memory_bytes(pid) > self._limits.memory_bytes


def find_bwrap(program: str = "bwrap") -> str:
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(
            f"{program} not found: install the package bubblewrap (0.8.0 or newer)",
            remedy="apt-get install bubblewrap libseccomp2",
        )
    return path


@dataclass(frozen=True, slots=True)
class SharedSandbox:
    """One starter, in a network namespace and a cgroup, for several commands at a time."""

    backend: BwrapSandbox
    place: PooledStarter
    on_listener: OnListener | None
    stops: set[Stop] = field(default_factory=set[Stop])
    """Those of the running commands."""

    async def run(
        self, command: SandboxCommand, *, on_output: OnOutput | None = None, stop: Stop | None = None
    ) -> SandboxOutcome:
        stop = stop or Stop()
        self.stops.add(stop)
        try:
            placed = replace(command, on_listener=self.on_listener)
            return await self.backend.run_at(contextlib.nullcontext(self.place), placed, on_output, stop)
        finally:
            self.stops.discard(stop)

    def request(self, reason: KilledReason) -> None:
        """Request the end of all running commands."""
        for stop in self.stops:
            stop.request(reason)

    def shared(self, on_listener: OnListener | None = None) -> AbstractAsyncContextManager[Sandbox]:
        return self.backend.shared(on_listener)


@dataclass(slots=True)
class PooledStarter:
    starter: Starter
    cgroup: CallCgroup | None
    shared: bool = False
    has_listener: bool = False
    """Whether the runner has the listening socket of the proxy of a shared sandbox."""
    unused_since: float = 0.0

    def reusable(self) -> bool:
        pid = self.starter.process.pid
        if pid is None or self.shared or not self.starter.idle:
            return False
        return self.cgroup is None or self.cgroup.reusable(pid)

    def end(self) -> None:
        if self.cgroup is not None:
            self.cgroup.end()


@dataclass
class Starters:
    """Lends a starter to each command. With `cgroups`, each starter has its own cgroup."""

    spawner: Spawner
    limits: SandboxLimits
    cgroups: CallCgroups | None
    unused_s: float = UNUSED_S
    _unused: list[PooledStarter] = field(default_factory=list[PooledStarter])
    _lent: int = 0

    @property
    def has_starters(self) -> bool:
        return bool(self._unused) or self._lent > 0

    @contextlib.asynccontextmanager
    async def lend(self, *, shared: bool = False) -> AsyncGenerator[PooledStarter]:
        """Lend a starter for the block; raise `SandboxUnavailable` if none can be started.

        A `shared` one is new, and ends with the block.
        """
        self._lent += 1
        try:
            place = self._new(shared=True) if shared else await self._take()
            try:
                yield place
            finally:
                await self._take_back(place)
        finally:
            self._lent -= 1

    async def _take_back(self, place: PooledStarter) -> None:
        if place.reusable():
            place.unused_since = time.monotonic()
            self._unused.append(place)
        else:
            # Without the shield, a cancelled caller would leave the cgroup behind.
            await asyncio.shield(self._end(place))

    async def end_unused(self) -> None:
        oldest = time.monotonic() - self.unused_s
        unused = [place for place in self._unused if place.unused_since <= oldest]
        self._unused = [place for place in self._unused if place.unused_since > oldest]
        for place in unused:
            await self._end(place)

    def close(self) -> None:
        self.spawner.close()
        for place in self._unused:
            place.end()
        if self.cgroups is not None:
            self.cgroups.close()

    async def _take(self) -> PooledStarter:
        while self._unused:
            place = self._unused.pop()
            # The starter may have been killed meanwhile.
            if place.starter.idle:
                return place
            await asyncio.shield(self._end(place))
        return self._new()

    def _new(self, *, shared: bool = False) -> PooledStarter:
        limits = self.limits
        if shared:
            most = limits.max_processes * SHARED_TREES
            limits = limits.model_copy(update={"max_processes": most})
        try:
            cgroup = None if self.cgroups is None else self.cgroups.create(limits)
        except OSError as error:
            raise SandboxUnavailable(f"cannot create a cgroup: {error}") from error
        with contextlib.ExitStack() as opened:
            joined = [] if cgroup is None else cgroup.open()
            for fd in joined:
                opened.callback(os.close, fd)
            return PooledStarter(self.spawner.starter(joined, shared=shared), cgroup, shared)

    async def _end(self, place: PooledStarter) -> None:
        place.starter.end()
        await asyncio.to_thread(place.end)
