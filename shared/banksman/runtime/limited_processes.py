"""Processes that do work on the data of tenants, with limits of processor time, time and memory.

Unlike a thread, a process can be killed at any time, whatever a library does, and has its own interpreter.
Requests and replies are frames: four bytes with their length, and their bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Self
from weakref import WeakValueDictionary

from banksman.contracts.errors import Unavailable

_PR_SET_PDEATHSIG = 1
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    cpu_s: float = 0.5
    """Processor time of one request, in seconds."""
    timeout_s: float = 10.0
    """Elapsed seconds that one request may take; more than `cpu_s`, because the machine may be busy."""
    memory_bytes: int = 256 * 1024 * 1024
    processes: int = 2
    """Number of requests at a time; one tenant has at most one."""
    idle_s: float = 10.0
    """Seconds after which an idle process ends, to free its 20 MiB."""


class LimitExceeded(Exception):
    """A request was ended at a limit; the text names the signal or the exit code."""


class LimitedProcesses:
    """Processes of one program, started when they are needed. The end of the context ends them."""

    def __init__(self, module: str, limits: ProcessLimits) -> None:
        """Prepare processes of a module that calls `serve`."""
        self._module = module
        self._limits = limits
        self._idle: list[asyncio.subprocess.Process] = []
        self._end_idle_later: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(limits.processes)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None]:
        """Wait until a tenant may send a request."""
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn, self._slots:
            yield

    async def exchange(self, *request: bytes) -> bytes:
        """Send the parts of one request, during a `turn`, and return its reply.

        Raises:
            LimitExceeded: It exceeded a limit.
            Unavailable: No process starts.
        """
        process = await self._process()
        reply = None
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                reply = await _exchange(process, request)
        except TimeoutError:
            pass
        finally:
            # Also if the caller is cancelled: the next request must not read the reply of this one.
            if reply is None:
                await asyncio.shield(_end(process))
            else:
                self._release(process)
        if reply is None:
            raise LimitExceeded(_ending(process))
        return reply

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._end_idle_later is not None:
            self._end_idle_later.cancel()
        while self._idle:
            await _end(self._idle.pop())

    async def _process(self) -> asyncio.subprocess.Process:
        while self._idle:
            if (process := self._idle.pop()).returncode is None:
                return process
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-m",
                self._module,
                str(self._limits.cpu_s),
                str(self._limits.memory_bytes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"a process that checks data does not start: {error.strerror}") from error

    def _release(self, process: asyncio.subprocess.Process) -> None:
        self._idle.append(process)
        if self._end_idle_later is not None:
            self._end_idle_later.cancel()
        loop = asyncio.get_running_loop()
        self._end_idle_later = loop.call_later(self._limits.idle_s, self._end_idle)

    def _end_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(ProcessLookupError):
                self._idle.pop().kill()


async def _exchange(process: asyncio.subprocess.Process, request: tuple[bytes, ...]) -> bytes | None:
    """Send one request; return its reply, or None if the process ended instead."""
    assert process.stdin is not None and process.stdout is not None
    size = sum(map(len, request))
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        process.stdin.writelines((size.to_bytes(_LENGTH_BYTES), *request))
        await process.stdin.drain()
        length = await process.stdout.readexactly(_LENGTH_BYTES)
        return await process.stdout.readexactly(int.from_bytes(length))
    # The process has ended. `kill` would hide its exit status: `Popen.kill` reaps it before asyncio does.
    await process.wait()
    return None


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _ending(process: asyncio.subprocess.Process) -> str:
    status = process.returncode or 0
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def serve(reply_to: Callable[[bytes], bytes]) -> None:
    """Serve requests until the input ends, in a process that `LimitedProcesses` started."""
    cpu_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    confine(memory_bytes)
    source, out = sys.stdin.buffer, sys.stdout.buffer
    while len(length := source.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        request = source.read(int.from_bytes(length))
        # SIGPROF ends the process even inside a library call.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = reply_to(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(len(reply).to_bytes(_LENGTH_BYTES) + reply)
        out.flush()


def confine(memory_bytes: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for limit, most in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))
